"""The style sheet of the page, for light and dark screens and for paper."""

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1c2430;--faint:#5f6b7a;--line:#dfe3e8;--grid:#eceff3;--training:#3569a8;
--validation:#c8432f;--right:53,105,168;--wrong:200,67,47;--weights:#3569a8;--normalization:#8a63b8;--activation:#d08a1d;--pooling:#2f8f6b;--other:#9aa5b1;
--box:#fff;--edge:#8592a0}
@media(prefers-color-scheme:dark){:root{--page:#12161c;--card:#1a2029;--text:#e4e8ee;--faint:#98a4b3;--line:#2e3744;--grid:#262e39;--training:#7fb0ec;
--validation:#ff8f7c;--right:94,148,216;--wrong:224,98,78;--weights:#7fb0ec;--normalization:#bc9be6;--activation:#e9b057;--pooling:#62c49c;--other:#6b7786;
--box:#222a35;--edge:#748294}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 56px}
header{margin-bottom:24px}h1{font-size:32px;line-height:1.2;margin:0;letter-spacing:-.01em;overflow-wrap:anywhere}header p{margin:4px 0 0;color:var(--faint)}
.kind{text-transform:uppercase;letter-spacing:.08em;font-size:12px;font-weight:600}
h2{font-size:19px;margin:0 0 4px}h3{font-size:15px;margin:0 0 6px}
section{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 24px 22px;margin-top:20px}
section>p{margin:0 0 14px;color:var(--faint);overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px}
.tiles div{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:14px 18px}
.tiles b{display:block;font-size:24px;line-height:1.25;font-variant-numeric:tabular-nums}.tiles span{color:var(--faint);font-size:13px}
.note{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--activation);border-radius:8px;padding:10px 14px;margin:16px 0 0;
overflow-wrap:anywhere}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:20px 28px}
figure{margin:0}.grid figcaption{font-weight:600;margin-bottom:2px}
.legend{display:flex;flex-wrap:wrap;align-items:center;gap:6px;font-size:13px}.legend span{width:16px;height:3px;border-radius:2px;margin-left:14px}
.legend span:first-child{margin-left:0}.legend .training{background:var(--training)}.legend .validation{background:var(--validation)}
.key span{width:4px;height:13px}
svg{display:block}.curves{width:100%;height:auto}.curves text{font-size:11.5px;fill:var(--faint);font-variant-numeric:tabular-nums}
.grid path.grid{display:inline}.curves .grid{stroke:var(--grid)}.curves .axis{stroke:var(--line)}
polyline{fill:none;stroke-width:2;stroke-linejoin:round}polyline.training{stroke:var(--training)}polyline.validation{stroke:var(--validation)}
circle.training{fill:var(--training)}circle.validation{fill:var(--validation)}circle{stroke:var(--card);stroke-width:1.5}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
td,th{padding:5px 14px 5px 0;text-align:left;border-bottom:1px solid var(--grid);white-space:nowrap}
th{color:var(--faint);font-weight:600;font-size:13px}thead th{white-space:normal;min-width:88px;max-width:150px;line-height:1.3;
vertical-align:bottom}
tbody tr:last-child td,tbody tr:last-child th{border-bottom:0}
.columns{display:flex;flex-wrap:wrap;gap:24px 48px;align-items:flex-start}.columns>*{min-width:0}
.confusion{border-collapse:separate;border-spacing:2px}.confusion td,.confusion th{border:0;padding:0;min-width:0;white-space:nowrap}
.confusion td{width:38px;height:34px;text-align:center;border-radius:5px;background:rgba(var(--tint),calc(var(--share)*.92 + .04))}
.confusion.small td{width:16px;height:16px;border-radius:3px}
.confusion td.none{background:var(--grid)}.confusion td.right{--tint:var(--right)}.confusion td.wrong{--tint:var(--wrong)}.confusion td.strong{color:#fff}
.confusion tbody th{text-align:right;padding-right:8px;font-weight:500;color:var(--text);max-width:180px;overflow:hidden;text-overflow:ellipsis}
.turned{vertical-align:bottom}.turned span{writing-mode:vertical-rl;transform:rotate(180deg);font-weight:500;color:var(--text);max-height:120px;
overflow:hidden;text-overflow:ellipsis;padding-top:6px}
.examples{display:grid;grid-template-columns:repeat(auto-fill,minmax(148px,1fr));gap:18px 16px}
.examples img{display:block;width:100%;aspect-ratio:1;object-fit:contain;background:var(--grid);border-radius:8px;margin-bottom:6px}
.pixels{image-rendering:pixelated}.examples figcaption{font-size:13.5px;line-height:1.35;overflow-wrap:anywhere}.examples b{color:var(--validation)}
.examples span,.examples small{color:var(--faint)}.examples small{font-size:12px}
.picture{overflow:auto;max-height:760px;border:1px solid var(--line);border-radius:8px;background:var(--page)}
.picture svg{margin:0 auto}.model text{font-size:12px;fill:var(--text)}.model .detail{fill:var(--faint);font-size:11px}
.model rect.nodes{fill:var(--box);stroke:var(--line)}.model rect.input,.model rect.output{fill:none;stroke:var(--edge);stroke-dasharray:none}
.model rect.weights{fill:var(--weights)}.model rect.normalization{fill:var(--normalization)}.model rect.activation{fill:var(--activation)}
.model rect.pooling{fill:var(--pooling)}.model rect.other{fill:var(--other)}.key .weights{background:var(--weights)}
.key .normalization{background:var(--normalization)}.key .activation{background:var(--activation)}.key .pooling{background:var(--pooling)}
.edge{fill:none;stroke:var(--edge);stroke-width:1.3}.arrow{fill:var(--edge)}.frame{fill:none;stroke:var(--weights);stroke-dasharray:5 4;stroke-width:1.3}
.model .times{font-size:15px;font-weight:700;fill:var(--weights)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,300px),1fr));gap:0 32px;margin:8px 0 0}
dl div{display:flex;gap:16px;justify-content:space-between;padding:5px 0;border-bottom:1px solid var(--grid)}dt{color:var(--faint)}
dd{margin:0;text-align:right;overflow-wrap:anywhere}details{margin-top:14px}summary{cursor:pointer;color:var(--faint)}
pre{overflow:auto;max-height:420px;font-size:12.5px;background:var(--page);border-radius:8px;padding:12px 14px}
footer{color:var(--faint);font-size:13px;margin-top:24px}
@media print{body{background:#fff}section,.tiles div{break-inside:avoid}.picture{max-height:none}}
""".strip().replace("\n", "")
