//! Machine code that is kept.

use ulplab::backend::cuda::cache::{Cache, key};
use ulplab::backend::cuda::toolkit::Cubin;

#[test]
fn what_is_kept_is_found_under_its_key_only() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::new(&folder.path().join("new"));
    let cubin = Cubin {
        bytes: vec![1, 2, 3],
        log: "Used 10 registers".into(),
    };
    let (one, other) = (blake3::hash(b"one"), blake3::hash(b"other"));
    let options = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mine = key(&one, &options(&["-a", "-b"]), (13, 0));
    assert!(cache.get(&mine).is_none());
    cache.put(&mine, &cubin);
    let found = cache.get(&mine).unwrap();
    assert_eq!((found.bytes, found.log), (cubin.bytes, cubin.log));
    for key in [
        key(&other, &options(&["-a", "-b"]), (13, 0)),
        key(&one, &options(&["-a"]), (13, 0)),
        key(&one, &options(&["-a-b"]), (13, 0)),
        key(&one, &options(&["-a", "-b"]), (13, 1)),
    ] {
        assert!(cache.get(&key).is_none());
    }
}
