//! The generated page.

#[test]
fn docs_checkpoints_md_is_what_the_lists_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/checkpoints.md");
    let want = ulplab_checkpoint::checkpoint::markdown();
    if std::env::var_os("ULPLAB_BLESS").is_some() {
        std::fs::write(path, &want).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == want,
        "docs/checkpoints.md is stale; write it again with ULPLAB_BLESS=1 cargo test -p ulplab-checkpoint --test checkpoint"
    );
}
