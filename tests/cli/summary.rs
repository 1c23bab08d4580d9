//! Lines of a summary.

use ulplab::commands::inspect::fit;

#[test]
fn a_wide_line_breaks_between_its_parts() {
    let line = "  layers.0.w   nvfp4  [8, 96]  SQNR 20.41 dB";
    assert_eq!(fit(line, 80), format!("{line}\n"));
    assert_eq!(fit(line, 32), "  layers.0.w  nvfp4  [8, 96]\n      SQNR 20.41 dB\n");
}
