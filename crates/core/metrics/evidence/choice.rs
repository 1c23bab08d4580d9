//! Compares two selections of items, row by row: top-k positions of an indexer, or experts of a router.

/// Agreement of a candidate's selection with the reference's.
///
/// Only *contested* rows count: rows with more than k items to select from. In other rows all items are selected, and their
/// recall of 1 would only dilute the mean.
///
/// Ties: items with a score equal to the smallest selected score are interchangeable. If the reference selected n such items that
/// the candidate did not, up to n such items that only the candidate selected count as right.
///
/// If a score of the reference is NaN or +∞, or a mass (weight of an item) is not finite, every metric is NaN. The score −∞ marks
/// items that must not be selected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Number of contested rows.
    pub rows: u64,
    /// Number of NaN and +∞ scores, and of masses (weights of items) that are not finite.
    pub nonfinite: u64,
    /// Sum of the recall over contested rows (more than k items to select from).
    pub(in crate::metrics) recall: f64,
    /// The smallest recall of a contested row (more than k items to select from).
    pub(in crate::metrics) recall_min: f64,
    /// Index of the row with the smallest recall; `None` if no row has more than k items to select from.
    pub worst: Option<usize>,
    /// Number of contested rows (more than k items) in which candidate and reference select the same items, except for ties.
    pub(in crate::metrics) equal: u64,
    /// Sum, over contested rows (more than k items), of the fraction of the reference's mass that falls on items in the
    /// candidate's selection; `None` if masses are not given.
    pub(in crate::metrics) recall_mass: Option<f64>,
}

impl Choice {
    /// Compares two selections. `want` and `got` are `[rows, k]` indices, −1 for no selection. `scores` holds the reference's
    /// scores, `[rows, candidates]`. `mass` is the reference's weight (attention probability, gate) of each entry of `want`,
    /// `[rows, k]`.
    ///
    /// # Panics
    /// If the lengths do not match, or an index of `want` is not a candidate.
    pub fn new<S>(want: &[i32], got: &[i32], k: usize, scores: &[S], candidates: usize, mass: Option<&[f32]>) -> Self
    where
        S: Copy + Into<f64>,
    {
        let indices = want.len();
        assert!(k > 0 && indices.is_multiple_of(k), "{indices} indices, rows of {k}");
        let rows = indices / k;
        assert_eq!(got.len(), want.len(), "indices of the two selections");
        assert_eq!(scores.len(), rows * candidates, "scores, {rows} rows of {candidates}");
        assert!(
            mass.is_none_or(|mass| mass.len() == want.len()),
            "one mass for each selected entry"
        );
        let nonfinite = |score: &&S| (**score).into().is_nan() || (**score).into() == f64::INFINITY;
        let nonfinite_scores = scores.iter().filter(nonfinite).count();
        let masses = mass.unwrap_or_default().iter().zip(want);
        let nonfinite_mass = masses.filter(|(mass, index)| **index >= 0 && !mass.is_finite()).count();
        let mut choice = Self {
            nonfinite: (nonfinite_scores + nonfinite_mass) as u64,
            recall_min: 1.0,
            recall_mass: mass.map(|_| 0.0),
            ..Self::default()
        };
        let mut marks = vec![Mark::Out; candidates];
        for row in 0..rows {
            let selection = row * k..(row + 1) * k;
            let scores = &scores[row * candidates..(row + 1) * candidates];
            if scores.iter().filter(|&&score| score.into() > f64::NEG_INFINITY).count() > k {
                let mass = mass.map(|mass| &mass[selection.clone()]);
                choice.add(row, &want[selection.clone()], &got[selection], scores, mass, &mut marks);
            }
        }
        choice
    }

    fn add<S: Copy + Into<f64>>(
        &mut self,
        row: usize,
        want: &[i32],
        got: &[i32],
        scores: &[S],
        mass: Option<&[f32]>,
        marks: &mut [Mark],
    ) {
        marks.fill(Mark::Out);
        for index in selected(want) {
            marks[index] = Mark::Missing;
        }
        let of_want = selected(want).map(|index| scores[index].into());
        let threshold = of_want.fold(f64::INFINITY, f64::min);
        let (mut size, mut hits, mut wrong, mut tied_in) = (0, 0, 0, 0);
        for index in got.iter().filter(|&&index| index >= 0).map(|&index| index as usize) {
            match marks.get(index) {
                Some(Mark::Missing) => {
                    marks[index] = Mark::Hit;
                    hits += 1;
                }
                Some(Mark::Out) if scores[index].into() == threshold => {
                    marks[index] = Mark::Extra;
                    tied_in += 1;
                }
                // The index is out of range, or its item is not among the reference's best k, or the item was selected twice.
                _ => wrong += 1,
            }
        }
        let mut tied_out = 0;
        for (index, mark) in marks.iter().enumerate() {
            size += usize::from(matches!(mark, Mark::Missing | Mark::Hit));
            tied_out += usize::from(*mark == Mark::Missing && scores[index].into() == threshold);
        }
        let credit = tied_in.min(tied_out);
        let recall = match size {
            0 => 1.0,
            size => (hits + credit) as f64 / size as f64,
        };
        self.rows += 1;
        self.recall += recall;
        if self.worst.is_none() || recall < self.recall_min {
            (self.recall_min, self.worst) = (recall, Some(row));
        }
        self.equal += u64::from(hits + credit == size && wrong == 0 && tied_in == credit);
        if let (Some(sum), Some(mass)) = (&mut self.recall_mass, mass) {
            let (mut total, mut kept) = (0.0, 0.0);
            for (&index, &mass) in want.iter().zip(mass) {
                let Ok(index) = usize::try_from(index) else { continue };
                total += f64::from(mass);
                kept += f64::from(mass)
                    * match marks[index] {
                        Mark::Hit => 1.0,
                        // The mass (weight) of an item that only the candidate selected is unknown, so the mass of the item that
                        // it replaces is used.
                        _ if scores[index].into() == threshold => credit as f64 / tied_out as f64,
                        _ => 0.0,
                    };
            }
            *sum += if total > 0.0 { kept / total } else { 1.0 };
        }
    }
}

/// Selection state of an item.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// Selected by neither side.
    Out,
    /// Selected by the reference, and not (yet) found in the candidate's selection.
    Missing,
    Hit,
    /// Selected by the candidate only, with a score equal to the smallest selected score.
    Extra,
}

fn selected(indices: &[i32]) -> impl Iterator<Item = usize> + '_ {
    indices.iter().filter_map(|&index| usize::try_from(index).ok())
}
