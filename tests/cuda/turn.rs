//! Turns of programs on a card.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ulplab::backend::cuda::turn::Turns;

#[test]
fn who_is_alone_waits_for_all_others() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Turns::on(Some(File::create(folder.path().join("lock")).unwrap()));
    let (first, second, third) = (open(), open(), open());
    // Two share it.
    let (a, b) = (first.shared(), second.shared());
    // A turn within a turn ends nothing.
    drop(first.shared());
    let alone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _turn = third.alone();
            alone.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!alone.load(Ordering::SeqCst));
        drop(a);
        std::thread::sleep(Duration::from_millis(50));
        assert!(!alone.load(Ordering::SeqCst));
        drop(b);
    });
    assert!(alone.load(Ordering::SeqCst));
    drop(first.alone());
}

#[test]
fn nobody_waits_without_a_file() {
    let none = Turns::on(None);
    let (_a, _b) = (none.alone(), none.alone());
}
