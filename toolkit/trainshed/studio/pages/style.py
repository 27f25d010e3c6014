"""How pages look, by day and by night."""

from __future__ import annotations

COLOURS = 8  # classes c0 to c7

_LIGHT = (
    "--back:#f6f7f9;--card:#fff;--ink:#1d2330;--soft:#5d6778;--line:#dfe3ea;--grid:#e9ecf1;--good:#1a7f4b;--bad:#c62f3d;"
    "--warn:#a86200;--c0:#2467c9;--c1:#dd6b20;--c2:#2b8a4b;--c3:#8a4fc7;--c4:#c2326a;--c5:#0f8b9a;--c6:#8d6a1f;--c7:#5f6b7c"
)
_DARK = (
    "--back:#11151c;--card:#191f29;--ink:#e4e8ef;--soft:#98a3b5;--line:#2c3543;--grid:#252d39;--good:#4cc38a;--bad:#ff7a85;"
    "--warn:#f0b35a;--c0:#6ea8fe;--c1:#ffa15c;--c2:#63c784;--c3:#bf93f2;--c4:#f27fa9;--c5:#4fc7d6;--c6:#d4b062;--c7:#9aa7ba"
)
_SERIES = "".join(
    f".l{n}{{stroke:var(--c{n})}}.f{n}{{fill:var(--c{n})}}i.f{n}{{background:var(--c{n})}}" for n in range(COLOURS)
)

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    "*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);"
    "font:15px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    "main{max-width:1120px;margin:0 auto;padding:20px 20px 60px}h1{font-size:22px;margin:0;overflow-wrap:anywhere}"
    "h2{font-size:16px;margin:0 0 12px}h3{font-size:14px;font-weight:600;margin:0 0 2px;overflow-wrap:anywhere}"
    "section,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:16px 18px;margin:0 0 16px}"
    ".top{display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center;margin:0 0 12px}"
    ".state{border-radius:99px;padding:2px 11px;font-size:13px;font-weight:600;border:1px solid currentColor}"
    ".good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}.note,.soft{color:var(--soft)}"
    ".note{margin:-6px 0 12px;font-size:13px}.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));"
    "gap:10px 18px;margin:0}.facts div{min-width:0}.facts dt{color:var(--soft);font-size:12px}"
    ".facts dd{margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums}"
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,470px),1fr));gap:18px 22px}"
    ".media img{max-width:100%;min-width:96px;height:auto;margin:0 0 10px}"
    "figure{margin:0;min-width:0}figure .note{margin:0 0 3px;font-size:12px}svg{display:block;width:100%;height:auto}"
    "svg text{font-size:11px;fill:var(--soft);font-family:inherit;font-variant-numeric:tabular-nums}"
    "svg .inside{fill:var(--card);font-weight:600}svg .row{fill:var(--ink);font-size:12px}.grd{stroke:var(--grid);fill:none}"
    ".axis{stroke:var(--line);fill:none}.ln{fill:none;stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round}"
    ".dot{stroke:none}.odd{fill:var(--bad)}.bad.f{fill:var(--bad)}.hov{fill:transparent}.hov:hover{fill:var(--ink);"
    "fill-opacity:.08}"
    ".legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12.5px;color:var(--soft);margin:0 0 4px}"
    "p.bad{color:var(--bad)}"
    ".chip{display:inline-flex;gap:5px;align-items:center;min-width:0;overflow-wrap:anywhere}"
    ".chip i{width:11px;height:11px;border-radius:3px;flex:none;background:var(--soft)}"
    ".chip b{color:var(--ink);font-weight:500;font-variant-numeric:tabular-nums}"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}"
    "th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;"
    "overflow-wrap:anywhere}th{color:var(--soft);font-weight:500}table.pairs td:first-child{width:34%;color:var(--soft)}"
    "tr:last-child td{border-bottom:0}table.numbers td+td,table.numbers th+th{text-align:right;padding:5px 0 5px 12px}"
    "pre{margin:8px 0 0;padding:12px;border-radius:8px;background:var(--back);border:1px solid var(--line);overflow:auto;"
    "max-height:420px;font:12.5px/1.45 ui-monospace,'DejaVu Sans Mono',Menlo,monospace;white-space:pre-wrap;"
    "overflow-wrap:anywhere}"
    ".fail{border-left:4px solid var(--bad)}.rule{border-left:4px solid var(--warn);padding:2px 0 2px 12px;margin:0 0 10px}"
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:0 16px;align-items:start}"
    # Which scale and which line is shown: two boxes before the charts, and no script.
    ".sw{position:absolute;opacity:0}.opts{display:inline-flex;gap:8px;margin:0 0 12px}"
    ".opts label{cursor:pointer;border:1px solid var(--line);border-radius:99px;padding:2px 12px;font-size:13px;"
    "color:var(--soft)}.log,.smo{display:none}"
    "#log:checked~.grid .haslog .lin{display:none}#log:checked~.grid .haslog .log{display:inline}"
    "#smooth:checked~.grid .smo{display:inline}#smooth:checked~.grid .raw{opacity:.28}"
    "#log:checked~.opts label[for=log],#smooth:checked~.opts label[for=smooth]{background:var(--c0);"
    "border-color:var(--c0);color:var(--card)}"
    ".sw:focus-visible~.opts label{outline:1px dotted var(--soft)}"
    "footer{color:var(--soft);font-size:12.5px}" + _SERIES + "@media print{section{break-inside:avoid}}"
)
