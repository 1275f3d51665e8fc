#pragma once

namespace longshore {

/// The status page's style sheet. Colours are variables, so that a scheme is one block; no `<` and
/// no `&`, so that it can stand in the document as it is.
inline constexpr char kStatusStyle[] = R"css(
:root {
  color-scheme: light dark;
  --page: #f3f6f8; --card: #ffffff; --line: #dfe6ec; --text: #15222e; --quiet: #5d6c7a;
  --sea: #0a7488; --shallow: #74bfca; --track: #e6edf1; --good: #1a7f4b; --warn: #b86e00;
  --bad: #bf3232; --good-back: #dff3e7; --warn-back: #fdf0d8; --bad-back: #fbe3e2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0c1319; --card: #141e26; --line: #243340; --text: #dde7ee; --quiet: #8fa1b0;
    --sea: #43bccf; --shallow: #22636f; --track: #223039; --good: #58cf8f; --warn: #eeb04c;
    --bad: #f27f7a; --good-back: #12342a; --warn-back: #3a2d13; --bad-back: #40201f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums;
}
main, header, footer { max-width: 1160px; margin: 0 auto; padding: 0 20px; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 18px; padding-top: 22px; padding-bottom: 18px; }
header svg { width: 38px; height: 38px; color: var(--sea); flex: none; }
h1 { margin: 0; font-size: 23px; line-height: 1.2; letter-spacing: -0.01em; }
header p { margin: 2px 0 0; color: var(--quiet); font-size: 13px; }
header code { font: 12px/1 ui-monospace, "DejaVu Sans Mono", monospace; }
.state { margin-left: auto; text-align: right; }
.pill { display: inline-block; padding: 3px 13px; border-radius: 99px; font-weight: 600; font-size: 14px; }
.pill::before { content: ""; display: inline-block; width: 8px; height: 8px; margin-right: 8px; border-radius: 50%; background: currentColor; }
.pill.good { color: var(--good); background: var(--good-back); }
.pill.warn { color: var(--warn); background: var(--warn-back); }
.pill.bad { color: var(--bad); background: var(--bad-back); }
main { display: grid; grid-template-columns: repeat(12, minmax(0, 1fr)); gap: 14px; }
.card { grid-column: span 12; background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 15px 18px 16px; }
.tile { grid-column: span 3; padding: 13px 18px 12px; }
.half { grid-column: span 6; }
h2 { display: flex; justify-content: space-between; align-items: baseline; gap: 12px; margin: 0 0 10px; font-size: 14px; }
h2 small { color: var(--quiet); font-weight: 400; font-size: 12px; text-align: right; }
.tile h2 { margin: 0; color: var(--quiet); font-weight: 500; font-size: 13px; }
.tile b { display: block; font-size: 25px; line-height: 1.35; font-weight: 600; letter-spacing: -0.02em; }
.tile b span { color: var(--quiet); font-size: 14px; font-weight: 400; letter-spacing: 0; }
.tile p, .note { margin: 0; color: var(--quiet); font-size: 12.5px; }
.bar { display: flex; height: 9px; min-width: 60px; border-radius: 5px; overflow: hidden; background: var(--track); }
.bar i { display: block; height: 100%; }
.sea { background: var(--sea); } .shallow { background: var(--shallow); }
.warn-fill { background: var(--warn); } .bad-fill { background: var(--bad); }
.tall .bar { height: 16px; border-radius: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 34px; margin: 9px 0 17px; padding: 0; list-style: none; color: var(--quiet); font-size: 13px; line-height: 1.45; }
.legend i { display: inline-block; width: 10px; height: 10px; margin-right: 7px; border-radius: 3px; }
.legend b { color: var(--text); font-size: 14px; font-weight: 600; }
.track { background: var(--track); box-shadow: inset 0 0 0 1px var(--line); }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 13.5px; }
th, td { padding: 6px 0 6px 16px; text-align: right; white-space: nowrap; font-weight: 400; border-top: 1px solid var(--line); }
thead th { padding-top: 0; border-top: 0; color: var(--quiet); font-size: 12px; }
th:first-child { padding-left: 0; text-align: left; }
tbody th { font-weight: 500; }
td .bar { width: 100%; min-width: 90px; }
.wide td:nth-child(2) { width: 70%; }
td.none, .quiet { color: var(--quiet); }
.name { display: inline-block; max-width: 300px; overflow: hidden; text-overflow: ellipsis; vertical-align: bottom; }
.bad-text { color: var(--bad); }
.columns rect { fill: var(--sea); } .columns rect.none { fill: var(--track); }
.columns { display: block; margin-left: auto; }
footer { display: flex; flex-wrap: wrap; gap: 4px 18px; justify-content: space-between; padding-top: 16px; padding-bottom: 30px; color: var(--quiet); font-size: 12.5px; }
a { color: var(--sea); }
@media (max-width: 860px) { .half { grid-column: span 12; } .tile { grid-column: span 6; } .state { margin-left: 0; text-align: left; } }
)css";

}  // namespace longshore
