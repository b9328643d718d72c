//! How the page looks, by day and by night.

/// Colours that kinds of programs take in turn: the number of classes `c0`, `c1`, … in [`STYLE`].
pub(super) const COLOURS: usize = 8;

pub(super) const STYLE: &str = "
:root { --ink: #1d2430; --dim: #5b6472; --line: #d0d5dd; --page: #fff; --bad: #a83200; --empty: #f2f4f7;
  --c0: #0072b2; --c1: #e69f00; --c2: #009e73; --c3: #cc79a7; --c4: #56b4e9; --c5: #d55e00;
  --c6: #b8a800; --c7: #777; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ef; --dim: #a3adbd; --line: #3a4252; --page: #161a21; --bad: #ff9b73;
    --empty: #1f2530; --c0: #3d9ad6; --c6: #f0e442; --c7: #9a9a9a; }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.dim { color: var(--dim); } .bad { color: var(--bad); font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
table.reasons th, table.reasons td { text-align: left; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--dim); font-size: 12px; }
svg.swatch { width: .8em; height: .8em; display: inline-block; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
";
