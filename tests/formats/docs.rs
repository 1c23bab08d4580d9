//! The generated page.

use super::oracle::root;

#[test]
fn docs_formats_md_is_what_the_tables_say() {
    let path = format!("{}/docs/formats.md", root());
    let want = ulplab::formats::markdown();
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(&path, &want).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == want,
        "docs/formats.md is stale; write it again with ULPLAB_BLESS=1 cargo test --test core formats::docs"
    );
}
