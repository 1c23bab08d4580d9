//! The end of a measurement.

use std::time::Duration;

use ulplab::backend::cuda::time::enough;

#[test]
fn repetitions_end_when_the_median_is_known_or_their_time_is_over() {
    let (steady, varied) = ([100.0; 200], [100.0, 130.0].repeat(100));
    let ms = Duration::from_millis;
    // (values, how many of them, after, enough)
    let all = [
        (&steady[..], 10, 1000, false),
        (&steady, 11, 60, true),
        (&steady, 20, 9, false),
        (&steady, 20, 10, true),
        (&varied, 20, 10, false),
        (&varied, 199, 59, false),
        (&varied, 199, 60, true),
        (&varied, 200, 1, true),
    ];
    for (values, n, spent, want) in all {
        assert_eq!(enough(&values[..n], ms(spent)), want, "{n} after {spent} ms");
    }
}
