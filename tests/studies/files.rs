//! Files that patterns name.

use ulplab::studies::kernels::operations::matching;

#[test]
fn patterns_of_files() {
    let folder = tempfile::tempdir().unwrap();
    for name in [
        "a.py",
        "b.py",
        "c.txt",
        ".hidden.py",
        "k/d.py",
        "k/e/f.py",
        "k/__pycache__/d.py",
    ] {
        let file = folder.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }
    for (pattern, names) in [
        ("*.py", &["a.py", "b.py"][..]),
        ("a*y", &["a.py"]),
        ("k/**", &["k/d.py", "k/e/f.py"]),
        ("**/*.py", &["a.py", "b.py", "k/d.py", "k/e/f.py"]),
        ("**/e/*", &["k/e/f.py"]),
        ("k/*/f.py", &["k/e/f.py"]),
        (".hidden.py", &[".hidden.py"]),
        ("k/__pycache__/*", &["k/__pycache__/d.py"]),
        ("*.rs", &[]),
        ("k", &[]),
        ("none/**", &[]),
    ] {
        let found = matching(folder.path(), pattern).unwrap();
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), names, "{pattern}");
    }
}
