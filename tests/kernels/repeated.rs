//! Cases repeated until they are large.

use safetensors::Dtype;
use ulplab::ops::data::f32_bytes;
use ulplab::ops::{Batch, Buffer, Case, Inputs, Problem};

#[test]
fn rows_are_repeated_until_reads_and_writes_are_large() {
    let case = Case {
        name: "three".into(),
        keys: vec![],
        dims: vec![("T", 3)],
        inputs: Inputs::Random,
        timed: false,
        large: false,
    };
    let x = Buffer::f32("x", &[3, 100], &[1.0; 300]);
    let weight = Buffer::f32("weight", &[100], &[1.0; 100]);
    let y = Buffer::output("y", Dtype::BF16, &[3, 100]);
    let problem = Problem {
        batch: Some(Batch::new("T", &["x", "y"])),
        ..Problem::new(vec![x, weight, y], vec![])
    };
    let times = problem.times_to_large().unwrap();
    let (large, of) = problem.repeated(&case, times).unwrap();
    assert_eq!(large.dim("T"), 3 * times);
    let [x, weight, y] = &of.buffers[..] else { panic!() };
    // All of the last three rows of y lie behind 2³² elements, which are 8 GiB; one time less would not do.
    let last = y.size() - problem.buffers[2].size();
    assert!(last > 1 << 33 && last - problem.buffers[2].size() <= 1 << 33);
    assert_eq!((x.size(), &x.bytes), (2 * y.size(), &f32_bytes(&[1.0; 300])));
    assert_eq!(weight.shape, [100]);
}

#[test]
fn numbers_name_the_rows_of_their_repetition() {
    let case = Case {
        name: "two".into(),
        keys: vec![],
        dims: vec![("N", 2), ("T", 5), ("D", 1)],
        inputs: Inputs::Random,
        timed: false,
        large: false,
    };
    let long = |numbers: &[i64]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let short = |numbers: &[i32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let buffers = vec![
        Buffer::f32("x", &[5, 1], &[1.0; 5]),
        Buffer::input("starts", Dtype::I32, &[3], short(&[0, 2, 5])),
        Buffer::input("slots", Dtype::I64, &[2], long(&[6, -1])),
        Buffer::in_place("pool", Dtype::U8, &[7, 1], vec![9; 7]),
    ];
    let batch = Batch::new("N", &["x", "slots"]).together(2, &["T"]);
    let problem = Problem {
        batch: Some(batch.starts("starts", 5).pool("slots", "pool", 7)),
        ..Problem::new(buffers, vec![])
    };
    let (large, of) = problem.repeated(&case, 3).unwrap();
    assert_eq!(large.dims, [("N", 6), ("T", 15), ("D", 1)]);
    let [x, starts, slots, pool] = &of.buffers[..] else {
        panic!()
    };
    assert_eq!((&x.shape[..], &pool.shape[..]), (&[15, 1][..], &[21, 1][..]));
    assert_eq!(
        (&starts.shape[..], &starts.bytes),
        (&[7][..], &short(&[0, 2, 5, 7, 10, 12, 15]))
    );
    assert_eq!(
        (&slots.shape[..], &slots.bytes),
        (&[6][..], &long(&[6, -1, 13, -1, 20, -1]))
    );
    // Rows that share a pool are not picked, and they are counted as sequences, not as tokens.
    assert!(problem.of_rows(&case, &[1]).is_none() && problem.rows() == Some(2));
}

#[test]
fn rows_in_blocks_are_not_repeated() {
    let case = Case {
        name: "blocks".into(),
        keys: vec![],
        dims: vec![("B", 3)],
        inputs: Inputs::Random,
        timed: false,
        large: false,
    };
    let times = |blocks: usize| {
        let problem = Problem {
            batch: Some(Batch::new("B", &[]).along(1, &["x"])),
            ..Problem::new(vec![Buffer::f32("x", &[blocks, 3], &vec![0.0; 3 * blocks])], vec![])
        };
        problem.repeated(&case, 2).map(|(_, of)| of.buffers[0].shape.clone())
    };
    assert_eq!((times(1), times(2)), (Some(vec![1, 6]), None));
}

#[test]
fn what_cannot_be_large_is_not_waited_for() {
    let times = |cols: usize| {
        let x = Buffer::f32("x", &[4, 1 << 20], &vec![0.0; 4 << 20]);
        let y = Buffer::output("y", Dtype::F32, &[4, cols]);
        let problem = Problem {
            batch: Some(Batch::new("B", &["x", "y"])),
            ..Problem::new(vec![x, y], vec![])
        };
        problem.times_to_large()
    };
    // x has 2³² elements with 1024 times as many rows; 65,536 rows of it are too much, as is any number of y that is large.
    assert_eq!(times(1), Some(1026));
    // Of y with a quarter of x's elements, 2³² are too much; so 2³¹ are what is waited for.
    assert_eq!(times(1 << 18), Some(2050));
    assert_eq!(times(1 << 20), Some(1026));
}
