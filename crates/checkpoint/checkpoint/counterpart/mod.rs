//! Finds the source tensors from which a quantized matrix was made. A source tensor may have another name prefix, may hold the
//! matrix as one expert of a stack or as some rows of a fused matrix, or may be quantized itself. A quantized stack or fused
//! matrix may have several source tensors.

mod place;
mod prefixes;

use std::collections::HashMap;

pub use place::{Place, place};
use prefixes::assigned;

use super::parts::Matrices;
use super::subject::Subject;
use crate::packed::Stack;
use ulplab_core::list::distinct;
use ulplab_core::tensorfile::Tensor;

/// All matrices of a source.
#[derive(Default)]
pub struct Sources<'s> {
    /// Source tensors by place (normalised name of a matrix).
    at: HashMap<Place, Vec<Held<'s>>>,
    /// True if stacks interleave the rows of gate and up, as gpt-oss does.
    interleaved: bool,
}

/// A tensor of the source.
struct Held<'s> {
    prefix: String,
    name: &'s str,
    /// Shape as stored, normally rows before columns.
    shape: Vec<usize>,
    values: Values<'s>,
}

enum Values<'s> {
    Plain(Tensor<'s>),
    /// A quantized matrix. It is decoded when its values are read.
    Quantized(Box<Subject<'s>>),
}

/// The source of a matrix, or of each matrix of a stack.
pub struct Counterpart<'s> {
    /// For each matrix, the source rows that it is made of, in order; several pieces if it is fused from several source tensors.
    matrices: Vec<Vec<Rows<'s>>>,
}

/// Rows of one matrix of a source tensor.
#[derive(Clone, Copy)]
struct Rows<'s> {
    held: &'s Held<'s>,
    /// Index of the source matrix in its stack.
    matrix: usize,
    /// Number of rows of the source matrix (`all`), and number of its rows that the quantized matrix contains (`count`).
    all: usize,
    count: usize,
    /// Rows of the source matrix that the quantized matrix contains.
    share: Share,
    /// True if the source matrix is stored transposed, with inputs before outputs.
    turned: bool,
    /// True if the source matrix is square, so that its shape does not tell if it is transposed.
    square: bool,
}

#[derive(Clone, Copy)]
enum Share {
    /// Consecutive rows, from the row with this index on.
    From(usize),
    /// Every second row, from the row with this index on.
    Second(usize),
    /// All rows: first the even ones, then the odd ones.
    Halves,
}

/// Arrangement of the rows and columns of the source. If the values do not match with `Likely`, the other two are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// The arrangement that shapes and the model type imply.
    Likely,
    /// Same as `Likely`, but square matrices are transposed.
    Turned,
    /// Same as `Likely`, but with gate and up rows of stacks of experts interleaved instead of in halves, or the reverse.
    Interleaved,
}

/// The source of each matrix, or the reason (text for a message) that it has none.
pub type Found<'s> = Vec<Result<Counterpart<'s>, String>>;

/// Finds the source of each of the selected matrices `subjects`. `all` holds all quantized matrices of the checkpoint; `matrices`
/// also holds the unquantized ones. Both are needed because the mapping of name prefixes and the rows of fused matrices must not
/// depend on the selection.
pub fn found<'s>(subjects: &[Subject], all: &[Subject], matrices: &Matrices, sources: &'s Sources<'s>) -> Found<'s> {
    let places: Vec<(String, Place)> = all.iter().map(|subject| place(subject.name)).collect();
    let shapes: Vec<Vec<usize>> = all.iter().map(|subject| subject.reading.shape()).collect();
    // The row counts of all matrices by name: they determine where q, k and v begin in a fused matrix.
    let plain = matrices.iter();
    let plain = plain.filter_map(|(name, parts)| Some((place(name), parts.codes?.shape)));
    let own = places.iter().cloned().zip(shapes.iter().map(Vec::as_slice));
    let rows = own.chain(plain).filter(|(_, shape)| shape.len() == 2);
    // The last insertion wins, so insert in reverse: the shape of a quantized matrix must override that of its packed codes.
    let rows = rows.rev().map(|(place, shape)| (place, shape[0]));
    let mut search = Search {
        sources,
        turned: [false; 2],
        rows: rows.collect(),
    };
    let within = |prefix: &str, at: usize| search.find(prefix, &places[at], &shapes[at]);
    let held = sources.at.iter();
    let held = held.flat_map(|(place, all)| all.iter().map(move |held| (place, held.prefix.as_str())));
    let prefixes = assigned(&places, held, |prefix, at| within(prefix, at).is_some());
    let found = |search: &Search<'s>, at: usize| -> Result<Counterpart<'s>, String> {
        let none = || match sources.at.get(&places[at].1).and_then(|all| all.first()) {
            Some(Held { name, shape, .. }) => format!("'{name}' of shape {shape:?}"),
            None => "none".into(),
        };
        match prefixes.get(&places[at].0) {
            Some(Ok(prefix)) => search.find(prefix, &places[at], &shapes[at]).ok_or_else(none),
            Some(Err(pairs)) => Err(format!("prefixes that fit the same number of matrices: {pairs}")),
            None => Err(none()),
        }
    };
    // A square source matrix has the same shape if it is transposed: assume the orientation that most other source matrices
    // have.
    let mut votes = [[0usize; 2]; 2];
    for counterpart in (0..all.len()).filter_map(|at| found(&search, at).ok()) {
        for rows in counterpart.matrices.iter().flatten().filter(|rows| !rows.square) {
            votes[rows.held.rank()][usize::from(rows.turned)] += 1;
        }
    }
    search.turned = votes.map(|[straight, turned]| turned > straight);
    let numbers: HashMap<&str, usize> = all.iter().map(|subject| subject.name).zip(0..).collect();
    let of = |subject: &Subject| match numbers.get(subject.name) {
        Some(at) => found(&search, *at),
        None => Err("none".into()),
    };
    subjects.iter().map(of).collect()
}

impl<'s> Sources<'s> {
    /// Collects the matrices of a source. `quantized` are the matrices that have codes and scales. `interleaved` is true for a
    /// model of type `gpt_oss`.
    pub fn new(matrices: &'s Matrices<'s>, quantized: Vec<Subject<'s>>, interleaved: bool) -> Self {
        let mut sources = Self {
            interleaved,
            ..Self::default()
        };
        for (name, parts) in matrices {
            let plain = parts.codes.filter(|codes| codes.is_floating() && parts.scale.is_none());
            if let Some(tensor) = plain.filter(|tensor| tensor.shape.len() >= 2) {
                sources.add(name, tensor.shape.to_vec(), Values::Plain(tensor));
            }
        }
        for subject in quantized {
            let (name, shape) = (subject.name, subject.reading.shape());
            sources.add(name, shape, Values::Quantized(Box::new(subject)));
        }
        sources
    }

    fn add(&mut self, name: &'s str, shape: Vec<usize>, values: Values<'s>) {
        let (prefix, place) = place(name);
        let held = Held {
            prefix,
            name,
            shape,
            values,
        };
        self.at.entry(place).or_default().push(held);
    }

    /// Returns the source tensor with this prefix and this normalised name (`place`); `None` if no tensor or several tensors have
    /// both.
    fn get(&self, prefix: &str, place: &Place) -> Option<&Held<'s>> {
        let mut all = self.at.get(place)?.iter().filter(|held| held.prefix == prefix);
        let first = all.next()?;
        all.next().is_none().then_some(first)
    }
}

struct Search<'s> {
    sources: &'s Sources<'s>,
    /// True if square matrices are assumed to be stored with inputs before outputs; one flag for single matrices, one for stacks.
    turned: [bool; 2],
    /// Row counts of the matrices of the quantized checkpoint, by prefix and place (normalised name).
    rows: HashMap<(String, Place), usize>,
}

impl<'s> Search<'s> {
    /// Finds the source of a matrix among the source tensors whose names begin with `prefix`.
    fn find(&self, prefix: &str, (own, place): &(String, Place), shape: &[usize]) -> Option<Counterpart<'s>> {
        let [leading @ .., rows, cols] = shape else {
            return None;
        };
        let experts: usize = leading.iter().product();
        if let Some(held) = self.sources.get(prefix, place) {
            // A tensor with the same name is the only candidate: if its shape does not fit, the matrix has no source.
            let same = held.shape.len() == shape.len() && held.shape.starts_with(leading);
            let all = (0..experts).map(|expert| Some(vec![self.whole(held, expert, Some(*rows), *cols)?]));
            let matrices = same.then(|| all.collect::<Option<_>>()).flatten()?;
            return Some(Counterpart { matrices });
        }
        let of = |expert: Option<usize>| {
            let place = place.of_expert(expert.or(place.expert));
            let single = self.single(prefix, &place, Some(*rows), *cols);
            let single = single.or_else(|| self.part(prefix, own, &place, *rows, *cols));
            let joined = || self.joined(prefix, &place, *rows, *cols);
            single.map(|rows| vec![rows]).or_else(joined)
        };
        let matrices = match leading {
            [] => vec![of(None)?],
            [_] => {
                // Reject a source with more experts than the stack.
                let all = (0..experts).map(|expert| of(Some(expert)));
                let matrices = all.collect::<Option<_>>()?;
                of(Some(experts)).is_none().then_some(matrices)?
            }
            _ => return None,
        };
        Some(Counterpart { matrices })
    }

    /// Finds the source of a matrix: a tensor of its own, or an expert in a stack.
    fn single(&self, prefix: &str, place: &Place, rows: Option<usize>, cols: usize) -> Option<Rows<'s>> {
        let alone = self.sources.get(prefix, place).filter(|held| held.shape.len() == 2);
        alone.and_then(|held| self.whole(held, 0, rows, cols)).or_else(|| {
            let expert = place.expert?;
            let stack = self.sources.get(prefix, &place.of_expert(None))?;
            let has = stack.shape.len() == 3 && expert < stack.shape[0];
            has.then(|| self.whole(stack, expert, rows, cols)).flatten()
        })
    }

    /// Finds the rows of a matrix in a fused source matrix. `under` is the prefix of the matrix in the quantized checkpoint.
    fn part(&self, prefix: &str, under: &str, place: &Place, rows: usize, cols: usize) -> Option<Rows<'s>> {
        let (fused, members) = place.fusion()?;
        let all = self.single(prefix, &place.with(fused), None, cols)?;
        let own = members.iter().position(|member| *member == place.leaf)?;
        let count = rows;
        let part = |share: Share| Rows { count, share, ..all };
        if members[0] == "gate_proj" {
            let share = match self.sources.interleaved && all.held.rank() == 1 {
                true => Share::Second(own),
                false => Share::From(own * rows),
            };
            return (all.count == 2 * rows).then_some(part(share));
        }
        let of = |member: &&str| match *member == place.leaf {
            true => Some(rows),
            false => self.rows.get(&(under.into(), place.with(member))).copied(),
        };
        let counts: Vec<usize> = members.iter().map(of).collect::<Option<_>>()?;
        let whole = counts.iter().sum::<usize>() == all.count;
        whole.then_some(part(Share::From(counts[..own].iter().sum())))
    }

    /// Finds the source matrices whose rows together form a fused matrix.
    fn joined(&self, prefix: &str, place: &Place, rows: usize, cols: usize) -> Option<Vec<Rows<'s>>> {
        let members = place.members();
        let each = |member: &&str| self.single(prefix, &place.with(member), None, cols);
        let all: Vec<Rows> = members.iter().map(each).collect::<Option<_>>()?;
        (!all.is_empty() && all.iter().map(|rows| rows.count).sum::<usize>() == rows).then_some(all)
    }

    /// Returns all rows of matrix number `matrix` of a source tensor; `None` if its shape is not `[rows, cols]` or the transpose.
    fn whole(&self, held: &'s Held<'s>, matrix: usize, rows: Option<usize>, cols: usize) -> Option<Rows<'s>> {
        let [.., a, b] = held.shape[..] else {
            return None;
        };
        let fits = |down: usize, across: usize| across == cols && rows.is_none_or(|rows| rows == down);
        let turned = match (fits(a, b), fits(b, a)) {
            (true, true) => self.turned[held.rank()],
            (true, false) => false,
            (false, true) => true,
            (false, false) => return None,
        };
        let all = if turned { b } else { a };
        Some(Rows {
            held,
            matrix,
            all,
            count: all,
            share: Share::From(0),
            turned,
            square: a == b,
        })
    }
}

impl Held<'_> {
    /// Returns 0 for a single matrix and 1 for a stack of matrices: an index into [`Search::turned`].
    fn rank(&self) -> usize {
        usize::from(self.shape.len() > 2)
    }

    /// Decoded values of matrix number `at` of the tensor.
    fn matrix(&self, at: usize) -> Vec<f32> {
        match &self.values {
            Values::Plain(tensor) => {
                let stack = Stack::new(&self.shape).expect("a tensor that was opened has elements that can be counted");
                stack.values(tensor, at)
            }
            Values::Quantized(subject) => subject.reading.matrix(at, false).values(),
        }
    }
}

impl Counterpart<'_> {
    /// Names of the source tensors, in the order in which the matrix uses them.
    pub fn names(&self) -> Vec<&str> {
        distinct(self.matrices.iter().flatten().map(|rows| rows.held.name))
    }

    /// True if any source tensor is quantized itself.
    pub fn is_quantized(&self) -> bool {
        let mut all = self.matrices.iter().flatten();
        all.any(|rows| matches!(rows.held.values, Values::Quantized(_)))
    }

    /// Returns the source values of matrix number `expert`, row by row, in the given arrangement. `None` if an arrangement other
    /// than `Likely` changes nothing.
    pub fn matrix(&self, expert: usize, arrangement: Arrangement) -> Option<Vec<f32>> {
        let mut values = Vec::new();
        let mut other = arrangement == Arrangement::Likely;
        for rows in &self.matrices[expert] {
            let [.., down, across] = rows.held.shape[..] else {
                unreachable!("sources are matrices");
            };
            let mut turned = rows.turned;
            if arrangement == Arrangement::Turned && rows.square {
                (turned, other) = (!turned, true);
            }
            let share = Some(rows.share).filter(|_| arrangement == Arrangement::Interleaved);
            let share = share.and_then(|share| rows.rearranged(share));
            other |= share.is_some();
            let all = rows.held.matrix(rows.matrix);
            let count = rows.count;
            let places: Vec<usize> = match share.unwrap_or(rows.share) {
                Share::From(first) => (first..first + count).collect(),
                Share::Second(first) => (first..).step_by(2).take(count).collect(),
                Share::Halves => (0..count).step_by(2).chain((1..count).step_by(2)).collect(),
            };
            for row in places {
                match turned {
                    true => values.extend((0..down).map(|col| all[col * across + row])),
                    false => values.extend_from_slice(&all[row * across..][..across]),
                }
            }
        }
        other.then_some(values)
    }
}

impl Rows<'_> {
    /// For a `gate_up_proj` stack, replaces one order of the gate and up rows by the other: interleaved or in halves. Returns the
    /// source rows to use in the other order; `None` for other source tensors.
    fn rearranged(&self, share: Share) -> Option<Share> {
        let (_, place) = place(self.held.name);
        if place.leaf != "gate_up_proj" || self.held.rank() == 0 {
            return None;
        }
        Some(match share {
            Share::Second(own) => Share::From(own * self.count),
            Share::From(first) if 2 * self.count == self.all => Share::Second(first / self.count.max(1)),
            _ => Share::Halves,
        })
    }
}
