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
a about above absent absolute accept accepted account ack acknowledge acknowledged acknowledgement action
actions activate active adapted adapter add admission admissions admit admitted adopted after again agent
agree alive all allowed allowlist alone already altered although among an and announce announces another
answer answering anything appears appended applied archive are args argument arguments around as ascii asked
asking at attach attached attaches attempt attempts attribute auth available away back backslashreplace base
be been before begin beginning begun behind belong belongs below beside between bias biases binary binding
bits blank blanks blocks bom boot both bound bounds bridge broke broken budget buffer build bus busy but by
byte bytes call caller callers came can cannot cap carried carries carry case cgroup changed changes
character characters check checked chmod chunk chunks claimed claims client close closed closing code colon
command commit compare compat complete completion components configuration confirmed conflict conflicts
connect connected connection console consoles consumed contact contain container containers contains content
contra control convert copied correct correlation corrupted could count counts create creating credential
ctl current cursor cut daemon damaged data deadletter deadline debug decided decimal declares decode deeper
delay denied depth detail device did differ different differs digest digits dimensions directory disagree
disk dispatch dispatched dispatches dmesg do docker does done dots dotted drain driver dropped drops dtype
dtypes dumps durable during each earlier early effect either elements else embedding empty enabled encode
end ended ends entries entry epoch equals err error errors escape evaluated event evicted evidence exactly
exceeds execute executed executing exist exists expected expire expired expires export expose external extra
failed fall false family faulted faults federation fell field file files finish finished finishes first
fitting five followed follows for forbid forbidden foreign forgot forgotten form format former found four
frame frames free from full gap garbage gateway gave generation give gives gone got gpu gpus grammar grant
grew group groups had half hand handshake happened hard has have header health heartbeat held help here hex
hexadecimal hint history hive hold holds hop host how id idempotency identity idle if ignore import in
incompatible infinities info install instance instead intake integer integers intent interrupt interrupted
into invalid inventory is issue it its job journal journaled journals json just keep kept kernel key kill
kind knew know known knows label lane lanes last lately layer layout leading lease leases least leave
leaving left legacy length less let letters level levels library lies life lifecycle like limit limited line
lines link list listed listing lists little loaded lock locked locking locks log logs lone long longer look
looking looks lora loss lost lower lowercase lspci magnitude make making malformed manifest many mark
matched max may mb mean meanwhile mem member members memory message methods minute mismatch misread missing
ml mode model models modprobe module moment more most mount mounts move moved moving ms multiple must name
named names namespace needs neither nests network never new newest next no nobody non none nor not nothing
now null number numbers nvidia object objects observation observe observed observer observing of off offer
offers offset offsets often ok old older on once one only op open opened opening operating operation ops or
order other others our ours out outages outcome outside over overlap own owner package pair pairs parse part
pass passed passes past path paths pattern payload pci peft pending percent performed permission pid pinned
pins place plain plan planned planning point pointer policy port possible power preempt preempted preemption
preemptions prefix prepare previous printable priority private probably problem proc process processes
program protocol provably proves provider published publishes publishing py pynvml quarantined queen queued
quota range rank ranks rate raw reachable read readers reading readings reads ready real reason reassembled
reassembles reboot rebooted receipt recognise reconciled record recorded records recovery ref refusal
refusals refuse refused refuses registry regular rejected relative relay release released reload remove
removed removes removing renew renewal renewed repeated replace replaced replay reports request required
reservation reset resolution resolved resource restart result results resume retained retention retirement
return returned right rise role rollback room root rule rules run running runtime s safe safetensors same
save saving say says schema second security see seen send sent seq sequence serving session sessions set
several shape shard sharding short shorten shorter should shows silent since single skipped slash slot slow
smaller smi snapshot so socket some somebody source space spawn speaks spec staged staging stale stands
start starting starts state states status stays still stood stop stream streams strict string strings
subject succeeded summary supervisor supported sure surrogate surrogatepass symbolic symlink syncing syntax
system systemctl systemd table tag take taken takeover takes target task telemetry tell tells tensor tensors
terminal terms text than that the then there this throttled through ticket tickets ties time timed timeout
to token tokens too took tool total touched transformers transition transport travel true trusted try ttl
twice two type unauthenticated unavailable uncertain unchanged undecided under unexpected unfinished unix
unknown unmount unparsable unreachable unreadable unsigned up upgrade upper usable usage use used user uses
utilisation uuid v valid value vector verb verified version violate violation visible wait waiting waits
warning was way were what when where whether which while who whole whose will wire with withdrawn within
without worked worker would write writer writing written wrong wrote yet z
"""

WORDS: frozenset[str] = frozenset((_PROTOCOL + _PLAIN).split())
