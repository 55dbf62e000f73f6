"""The words that an exported journal keeps: the protocols' own, and those of the agent's messages.

Whatever is not in the list is replaced, so a word that is missing makes a message harder to read and betrays
nothing.
"""

from __future__ import annotations

__all__ = ["WORDS"]

_PROTOCOL = """
ACTIVE ATTACH AUTH BOOTING CAT CONSOLE DEGRADED DRAINING ECHO ELIMIT END EPERM ERR FOUND FRAME GPU INVALID
LS NOT OFFLINE OK ONLINE PARSE PING PONG QUIESCED READY RELEASED TAIL TIMEOUT UNKNOWN v1 v2
"""

_PLAIN = """
a about above absent absolute ack acknowledge acknowledged acknowledgement action actions activate active
adapter add admission admissions admit admitted adopted after again agent all allowed allowlist already
altered although an and another answer answering anything appears appended applied archive are args argument
arguments as ascii asked at attach attached attaches attempt attempts attribute auth back backslashreplace
base be before behind belongs below beside binding bits blank blocks bom boot bound bounds bridge broke
broken budget buffer build bus busy but by byte bytes call caller callers came can cannot cap carried
carries carry cgroup changed changes character characters check chunk chunks claimed claims client close
closed closing code command compare compat complete completion components confirmed conflict conflicts
connect connected connection console consoles consumed contact container containers content contra control
correlation corrupted could count credential ctl current cursor cut daemon data deadletter deadline debug
decided decimal declares decode deeper delay denied depth detail device did differ different digest digits
disk dispatch dmesg docker does done drain driver dropped drops dumps during each earlier effect either else
empty enabled encode end ended ends epoch equals err error errors escape event evicted evidence exceeds
execute executed executing exist expected expired expires export expose external extra failed fall false
family faulted faults federation fell field file finish first five followed for forbid forbidden foreign
forgot forgotten form format found four frame frames free from full gap garbage gateway gave generation gone
got gpu gpus grammar grant grew group groups had handshake has have header health heartbeat held help here
hex hexadecimal hint history hive hold holds hop host id idempotency identity idle if ignore import in
incompatible infinities info install instance instead intake integer intent interrupt invalid inventory is
issue it its job journal journaled json keep kernel key kill kind know known knows label last leading lease
leases leaving left legacy length less letters level library lies lifecycle like limit limited line lines
link list listed little loaded lock locked log logs lone long longer look looks lora loss lost lowercase
lspci malformed manifest many mark matched max may mb mem member members memory message minute misread
missing ml mode models modprobe module moment more most mount moved ms multiple must name names namespace
needs nests network never new newest next no nobody non none not nothing now null number numbers nvidia
object observe observed observing of off offer offers offset offsets often ok old older on once one only op
open operating operation ops or order other our ours out outages outcome outside over own owner package
parse pass passed passes past path paths payload pci peft pending percent performed pid pinned plain plan
planning policy port possible power preempt preempted preemption preemptions prefix prepare printable
priority probably problem proc processes program protocol provably proves provider published publishing py
pynvml quarantined queen queued quota range rate raw reachable read reading readings reads ready reason
reassembled reassembles reboot rebooted receipt recognise reconciled record recorded records recovery ref
refusal refusals refuse refused refuses regular rejected relay release released reload remove renew renewal
renewed repeated replace reports request required reservation reset resolved resource restart result results
resume retained retention retirement returned rise role rollback root rules run running runtime s safe same
say says schema security see seen send sent seq sequence serving session sessions set shard sharding short
shorten should shows silent since single skipped slot slow smaller smi snapshot so source spawn speaks spec
staged stale stands start starting starts state states status still stood stop stream streams strict string
subject succeeded summary supervisor surrogate surrogatepass symbolic syntax system systemctl systemd tag
take taken takes target task telemetry terminal terms text than that the then there this throttled through
ticket tickets ties time timed timeout to token tokens too took tool total transition travel true trusted
try ttl twice type unauthenticated unavailable uncertain unchanged under unix unknown unparsable unreachable
unreadable unsigned up upgrade usage use used user uses utilisation uuid v valid value verb verified version
violate violation visible wait waiting waits warning was way were when where whether which while wire with
withdrawn within without worked worker would write written wrong wrote yet z
"""

WORDS: frozenset[str] = frozenset((_PROTOCOL + _PLAIN).split())
