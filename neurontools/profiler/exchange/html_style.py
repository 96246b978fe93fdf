"""The style sheet of the HTML report: light and dark, on screens and on paper."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5c6675;--page:#fff;--line:#dfe3e8;--bar:#cfe0f7;
--compile:#b2560d;--load:#8a6fc4;--transfer:#1f8a8a;--execute:#2f6fd0;--idle:#c9ced6;--memory:#b2560d;--compute:#2f6fd0}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--page:#14181f;--line:#313843;--bar:#274468;
--compile:#e8934a;--load:#ab97e0;--transfer:#4fb8b8;--execute:#6fa3ee;--idle:#4a5362;--memory:#e8934a;--compute:#6fa3ee}}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:960px;margin:0 auto;padding:24px 20px 48px}
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.15rem;margin:2.2rem 0 .6rem}p{margin:.3rem 0}
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
.warning{border-left:3px solid var(--memory);padding-left:.6rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--soft);font-weight:600}th,td{padding:3px 12px 3px 0;border-bottom:1px solid var(--line);
vertical-align:top}td{overflow-wrap:break-word}td:first-child{overflow-wrap:anywhere}.number{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td:first-child{min-width:11rem}summary{cursor:pointer;color:var(--soft)}footer{margin-top:3rem;color:var(--soft)}
.bar{display:inline-block;width:70px;height:10px;margin-right:8px;border-radius:2px;background:var(--line)}
.bar i{display:block;height:100%;border-radius:2px;background:var(--execute)}
.share{display:inline-block;min-width:6ch}
svg{width:100%;height:auto;margin:.4rem 0 1rem}svg text{font-size:11.5px;fill:var(--soft)}
.grid{stroke:var(--line)}.roof{fill:none;stroke:var(--ink);stroke-width:1.6}.ridge{stroke:var(--soft);stroke-dasharray:4 4}
circle{fill-opacity:.75}circle.memory{fill:var(--memory)}circle.compute{fill:var(--compute)}
rect.compile{fill:var(--compile)}rect.load{fill:var(--load)}rect.transfer{fill:var(--transfer)}
rect.cut{fill:var(--page)}rect.execute{fill:var(--execute)}rect.idle{fill:var(--idle)}
.key{margin-right:1.2rem}.key::before{content:"";display:inline-block;width:11px;height:11px;margin-right:6px;border-radius:2px}
.key.compile::before{background:var(--compile)}.key.load::before{background:var(--load)}
.key.transfer::before{background:var(--transfer)}.key.execute::before{background:var(--execute)}
.key.idle::before{background:var(--idle)}
@media print{main{max-width:none;padding:0}section{break-inside:avoid-page}}
""".strip()
