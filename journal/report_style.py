"""The look of the report: one style sheet, light and dark, for screens of any width and for paper."""

from __future__ import annotations

__all__ = ["DARK", "LIGHT", "style_sheet"]

LIGHT = {
    "page": "#ffffff",
    "card": "#f5f6f8",
    "line": "#d5d9e0",
    "text": "#1b2130",
    "quiet": "#586174",
    "prepared": "#8a94a6",
    "executing": "#c27a00",
    "persisted": "#2f6fd0",
    "published": "#0f7c70",
    "confirmed": "#177a33",
    "rejected": "#c62f38",
    "stale": "#8a5a00",
    "uncertain": "#8b2fc9",
    "crash": "#c0182b",
    "restart": "#1f5fbf",
    "silence": "#fbe3e5",
    "pause": "#eceff4",
}
DARK = {
    "page": "#12151c",
    "card": "#1b202b",
    "line": "#343c4c",
    "text": "#e8ebf1",
    "quiet": "#a3adc0",
    "prepared": "#8a94a6",
    "executing": "#f0a92e",
    "persisted": "#6aa5ff",
    "published": "#3cc4b4",
    "confirmed": "#54c777",
    "rejected": "#ff7a80",
    "stale": "#dba744",
    "uncertain": "#cf8dff",
    "crash": "#ff6474",
    "restart": "#7db2ff",
    "silence": "#3a1c22",
    "pause": "#222835",
}

_RULES = """
*{box-sizing:border-box}
html{background:var(--page);color:var(--text);
 font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
body{margin:0 auto;padding:24px clamp(12px,3vw,40px) 64px;max-width:1900px}
h1{font-size:22px;margin:0 0 2px}
h2{font-size:16px;margin:34px 0 8px}
p{margin:4px 0;max-width:105ch}
code,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:12px}
.quiet{color:var(--quiet)}
.tiles{display:flex;flex-wrap:wrap;gap:10px;margin:16px 0 6px;padding:0;list-style:none}
.tiles li{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px 14px;
 min-width:104px}
.tiles b{display:block;font-size:22px;line-height:1.2;font-variant-numeric:tabular-nums}
.tiles .bad b{color:var(--crash)}
.tiles .unsure b{color:var(--uncertain)}
.alert{border:1px solid var(--crash);border-left-width:5px;border-radius:6px;padding:8px 12px;margin:10px 0}
.legend{display:flex;flex-wrap:wrap;gap:6px 18px;margin:10px 0;padding:0;list-style:none;color:var(--quiet)}
.legend li{display:flex;align-items:center;gap:6px}
.legend svg{flex:none}
.panel{display:grid;grid-template-columns:minmax(130px,270px) minmax(0,1fr);border:1px solid var(--line);
 border-radius:8px;overflow:hidden;margin:8px 0 18px}
.labels{margin:0;padding:HEADpx 0 0;list-style:none;border-right:1px solid var(--line);background:var(--card)}
.labels li{height:ROWpx;line-height:ROWpx;padding:0 10px;white-space:nowrap;overflow:hidden;
 text-overflow:ellipsis;border-top:1px solid var(--line)}
.labels a{color:inherit;text-decoration:none;font-weight:600}
.labels a:hover,.labels a:focus{text-decoration:underline}
.scroll{overflow-x:auto;overflow-y:hidden}
.scroll svg{display:block}
svg text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--text)}
svg .tick{fill:var(--quiet);font-size:10.5px;font-variant-numeric:tabular-nums}
svg .row,svg .grid{stroke:var(--line);stroke-width:1}
svg .grid{stroke-dasharray:1 4}
.s-prepared{fill:var(--prepared)}
.s-executing{fill:var(--executing)}
.s-provider-result-persisted{fill:var(--persisted)}
.s-result-published{fill:var(--published)}
.window{fill:url(#hatch);stroke:var(--uncertain);stroke-width:1.5}
.window.open{stroke-dasharray:4 3}
.hatch-back{fill:var(--page);fill-opacity:.35}
.hatch-line{stroke:var(--uncertain);stroke-width:3}
svg .on-window{fill:var(--text);font-weight:600;paint-order:stroke;stroke:var(--page);stroke-width:4px;
 stroke-linejoin:round}
.o-confirmed{fill:var(--confirmed)}
.o-rejected{fill:var(--rejected)}
.o-stale{fill:var(--stale)}
.glyph{fill:none;stroke:var(--page);stroke-width:2;stroke-linecap:round;stroke-linejoin:round}
.open-end{fill:none;stroke:var(--text);stroke-width:2}
.silence{fill:var(--pause)}
.silence.crashed{fill:var(--silence)}
.m-line{stroke-width:2;fill:none}
.m-crash .m-line{stroke:var(--crash)}
.m-crash text,.m-crash .m-shape{fill:var(--crash)}
.m-restart .m-line,.m-start .m-line{stroke:var(--restart);stroke-dasharray:6 4}
.m-reboot .m-line{stroke:var(--restart);stroke-width:4}
.m-restart text,.m-reboot text,.m-start text,.m-restart .m-shape,.m-reboot .m-shape,
.m-start .m-shape{fill:var(--restart)}
.m-stop .m-line{stroke:var(--quiet);stroke-dasharray:2 3}
.m-stop text,.m-stop .m-shape{fill:var(--quiet)}
.m-epoch .m-line{stroke:var(--published);stroke-dasharray:10 3 2 3}
.m-epoch text,.m-epoch .m-shape{fill:var(--published)}
svg .m text{font-weight:600}
.table{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:12.5px}
th,td{text-align:left;vertical-align:top;padding:5px 10px;border-top:1px solid var(--line)}
thead th{border-top:0;background:var(--card);white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums}
td.t{white-space:nowrap;font-variant-numeric:tabular-nums}
td.w{min-width:30ch;overflow-wrap:anywhere}
tr:target{outline:2px solid var(--restart);outline-offset:-2px;background:var(--card)}
.tag{display:inline-block;border:1px solid currentColor;border-radius:4px;padding:0 5px;white-space:nowrap}
.t-confirmed{color:var(--confirmed)}
.t-rejected,.t-crashed{color:var(--crash)}
.t-stale{color:var(--stale)}
.t-uncertain{color:var(--uncertain)}
@media (max-width:640px){.panel{grid-template-columns:118px minmax(0,1fr)}.labels .more{display:none}}
@media print{.scroll,.table{overflow:visible}.panel{break-inside:avoid}}
"""


def style_sheet(*, head: int, row: int) -> str:
    """Return the style sheet.

    Args:
        head: height in pixels above the first lane.
        row: height in pixels of a lane.
    """
    light = ";".join(f"--{name}:{colour}" for name, colour in LIGHT.items())
    dark = ";".join(f"--{name}:{colour}" for name, colour in DARK.items())
    rules = _RULES.replace("HEAD", str(head)).replace("ROW", str(row)).strip()
    return (
        f":root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{rules}"
    )
