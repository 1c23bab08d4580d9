//! The order of a variant's launches: `film E(route J(gate_up down)) {attend | mix} [@E > 0](collapse)`.

use super::expr::{eval, tokens};

/// One launch of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Its name.
    pub launch: String,
    /// The repetitions that contain it, outermost first: name of the count, and index from 0.
    pub counters: Vec<(String, i64)>,
    /// The stream that it is put into: 0 is the main one.
    pub stream: usize,
    /// Other streams, for all that was put into which before this launch it waits.
    pub waits: Vec<usize>,
}

/// Launches in the order in which they run. A name is a launch; `COUNT( … )` repeats its content, where the count is a
/// number, a size, or an expression in brackets, and skips it if the count is 0. In an expression, `@NAME` is the index of
/// the repetition that the size NAME counts. Branches, `{a b | c}`, run side by side: each in a stream of its own, the first in the
/// stream of what surrounds them; what comes after them waits for all.
pub fn unroll(text: &str, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<Vec<Turn>, String> {
    let wrong = |why: String| format!("sequence '{text}': {why}");
    let parts = parse(text).map_err(wrong)?;
    let mut unrolled = Unrolled {
        sizes,
        counters: Vec::new(),
        turns: Vec::new(),
        streams: 1,
    };
    let (stream, waits, begun) = (0, Vec::new(), true);
    let mut end = End { stream, waits, begun };
    unrolled.emit(&parts, &mut end).map_err(wrong)?;
    match end.waits.as_slice() {
        [] => Ok(unrolled.turns),
        _ => Err(wrong("no launch comes after the last branches, which waits for them".into())),
    }
}

/// The launches that it names, whatever the counts.
pub fn launches(text: &str) -> Result<Vec<String>, String> {
    Ok(counted(text)?.into_iter().map(|(name, _)| name).collect())
}

/// The launches that it names, each with the counts of the repetitions that contain it, outermost first.
pub fn counted(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    fn names(parts: &[Part], counts: &mut Vec<String>, found: &mut Vec<(String, Vec<String>)>) {
        for part in parts {
            match part {
                Part::Launch(name) => found.push((name.clone(), counts.clone())),
                Part::Repeated { count, content } => {
                    counts.push(count.clone());
                    names(content, counts, found);
                    counts.pop();
                }
                Part::Branches(branches) => branches.iter().for_each(|branch| names(branch, counts, found)),
            }
        }
    }
    let mut found = Vec::new();
    names(&parse(text)?, &mut Vec::new(), &mut found);
    Ok(found)
}

/// Most launches of a run: more is a size in the wrong place.
pub(super) const MOST: usize = 100_000;
const MOST_TIMES: i64 = MOST as i64;

/// A piece of a sequence.
enum Part {
    Launch(String),
    Repeated {
        /// A number, a size or an expression.
        count: String,
        content: Vec<Part>,
    },
    /// They run side by side.
    Branches(Vec<Vec<Part>>),
}

fn parse(text: &str) -> Result<Vec<Part>, String> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens };
    let parts = parser.parts()?;
    match parser.tokens.first() {
        None => Ok(parts),
        Some(token) => Err(format!("unexpected '{token}'")),
    }
}

struct Parser<'a> {
    tokens: &'a [String],
}

impl Parser<'_> {
    fn parts(&mut self) -> Result<Vec<Part>, String> {
        let mut parts = Vec::new();
        let inside = |word: &str| ![")", "|", "}"].contains(&word);
        while let Some((word, rest)) = self.tokens.split_first().filter(|(word, _)| inside(word)) {
            self.tokens = rest;
            if word == "{" {
                parts.push(Part::Branches(self.branches()?));
                continue;
            }
            let (bracketed, word) = match word.as_str() {
                "[" => (true, self.expression()?),
                name if name.starts_with(|c: char| c.is_alphanumeric() || c == '_') => (false, word.clone()),
                other => return Err(format!("unexpected '{other}'")),
            };
            match self.tokens.split_first() {
                Some((open, inside)) if open == "(" => {
                    self.tokens = inside;
                    let content = self.parts()?;
                    self.tokens = match self.tokens.split_first() {
                        Some((close, rest)) if close == ")" => rest,
                        _ => return Err(format!("'{word}(' is not closed")),
                    };
                    parts.push(Part::Repeated { count: word, content });
                }
                _ if bracketed => return Err(format!("'[{word}]' has no '(' after it")),
                _ => parts.push(Part::Launch(word)),
            }
        }
        Ok(parts)
    }

    /// Branches up to the brace that closes them.
    fn branches(&mut self) -> Result<Vec<Vec<Part>>, String> {
        let mut branches = Vec::new();
        loop {
            branches.push(self.parts()?);
            let (token, rest) = self.tokens.split_first().ok_or("'{' is not closed")?;
            self.tokens = rest;
            match token.as_str() {
                "|" => {}
                "}" if branches.len() > 1 => return Ok(branches),
                "}" => return Err("'{' has one branch, expected several with '|' between them".into()),
                other => return Err(format!("unexpected '{other}'")),
            }
        }
    }

    /// The text up to the bracket that closes it.
    fn expression(&mut self) -> Result<String, String> {
        let end = self.tokens.iter().position(|token| token == "]");
        let end = end.ok_or("'[' is not closed")?;
        let text = self.tokens[..end].join(" ");
        self.tokens = &self.tokens[end + 1..];
        Ok(text)
    }
}

/// The launches so far.
struct Unrolled<'a> {
    sizes: &'a dyn Fn(&str) -> Option<i64>,
    counters: Vec<(String, i64)>,
    turns: Vec<Turn>,
    /// How many streams the branches have that are open.
    streams: usize,
}

/// Where the next launch of a branch goes.
struct End {
    stream: usize,
    /// The streams for which it waits.
    waits: Vec<usize>,
    /// Whether the branch has a launch in its stream.
    begun: bool,
}

impl End {
    /// What waits for all of the branch waits for these streams.
    fn all(&self) -> Vec<usize> {
        let own = self.begun.then_some(self.stream);
        self.waits.iter().copied().chain(own).collect()
    }
}

impl Unrolled<'_> {
    fn emit(&mut self, parts: &[Part], end: &mut End) -> Result<(), String> {
        for part in parts {
            match part {
                Part::Launch(name) => {
                    if self.turns.len() == MOST {
                        return Err(format!("more than {MOST} launches"));
                    }
                    let (stream, mut waits) = (end.stream, std::mem::take(&mut end.waits));
                    waits.retain(|other| *other != stream);
                    waits.sort_unstable();
                    waits.dedup();
                    self.turns.push(Turn {
                        launch: name.clone(),
                        counters: self.counters.clone(),
                        stream,
                        waits,
                    });
                    end.begun = true;
                }
                Part::Repeated { count, content } => {
                    for number in 0..self.times(count)? {
                        self.counters.push((count.clone(), number));
                        let done = self.emit(content, end);
                        self.counters.pop();
                        done?;
                    }
                }
                Part::Branches(branches) => self.branches(branches, end)?,
            }
        }
        Ok(())
    }

    /// The first branch comes last: others wait for what its stream has before it, and no more.
    fn branches(&mut self, branches: &[Vec<Part>], end: &mut End) -> Result<(), String> {
        let first = self.streams;
        self.streams += branches.len() - 1;
        let mut others = Vec::new();
        for (stream, branch) in (first..).zip(&branches[1..]) {
            let (before, waits) = (self.turns.len(), end.all());
            let mut own = End { stream, waits, begun: false };
            self.emit(branch, &mut own)?;
            if self.turns.len() > before {
                others.extend(own.all());
            }
        }
        self.emit(&branches[0], end)?;
        self.streams = first;
        end.waits.extend(others);
        Ok(())
    }

    /// How often a part is repeated.
    fn times(&self, count: &str) -> Result<i64, String> {
        let known = |name: &str| counter(&self.counters, name).or_else(|| (self.sizes)(name));
        let times = eval(count, &known).map_err(|why| match known(count) {
            None if !count.contains(' ') => format!("'{count}' is no size"),
            _ => why,
        })?;
        match times {
            0..=MOST_TIMES => Ok(times),
            _ => Err(format!("'{count}' is {times}")),
        }
    }
}

/// The value of `@NAME`; of several repetitions within each other that NAME counts the innermost.
fn counter(counters: &[(String, i64)], name: &str) -> Option<i64> {
    let count = name.strip_prefix('@')?;
    let found = counters.iter().rev().find(|(name, _)| name == count);
    found.map(|(_, number)| *number)
}

impl Turn {
    /// The value of `@NAME`: which repetition counted by NAME it is in.
    pub fn counter(&self, name: &str) -> Option<i64> {
        counter(&self.counters, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(name: &str) -> Option<i64> {
        [("E", 2), ("J", 3), ("begin", 0)]
            .iter()
            .find(|(size, _)| *size == name)
            .map(|(_, value)| *value)
    }

    fn names(text: &str) -> Result<String, String> {
        let turns = unroll(text, &sizes)?;
        Ok(turns
            .iter()
            .map(|turn| turn.launch.as_str())
            .collect::<Vec<_>>()
            .join(" "))
    }

    #[test]
    fn repeats_and_leaves_out() {
        assert_eq!(names("a E(b 2(c) d) e").unwrap(), "a b c c d b c c d e");
        assert_eq!(names("begin(film) x").unwrap(), "x");
        assert_eq!(names("").unwrap(), "");
        assert_eq!(names("J(a [@J % 2 == 1](b) [E - 1](c))").unwrap(), "a c a b c a c");
    }

    #[test]
    fn counts_from_outside_in() {
        let turns = unroll("E(J(a) E(b))", &sizes).unwrap();
        let counted: Vec<_> = turns
            .iter()
            .map(|turn| (turn.counter("@E"), turn.counter("@J")))
            .collect();
        let inner = [(0, Some(0)), (0, Some(1)), (0, Some(2)), (0, None), (1, None)];
        let outer = [(1, Some(0)), (1, Some(1)), (1, Some(2)), (0, None), (1, None)];
        let want: Vec<_> = inner.into_iter().chain(outer).map(|(e, j)| (Some(e), j)).collect();
        assert_eq!(counted, want);
    }

    /// The stream of each launch, and for which it waits.
    fn streams(text: &str) -> Result<String, String> {
        let turns = unroll(text, &sizes)?;
        let told = |turn: &Turn| {
            let waits: String = turn.waits.iter().map(|other| format!("<{other}")).collect();
            format!("{}{}{waits}", turn.launch, turn.stream)
        };
        Ok(turns.iter().map(told).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn branches_run_side_by_side() {
        for (text, want) in [
            ("a {b | c} d", "a0 c1<0 b0 d0<1"),
            ("a {b c | d e | f} g h", "a0 d1<0 e1 f2<0 b0 c0 g0<1<2 h0"),
            // What follows at once waits for the branches before, in all streams.
            ("{a | b} {c | d} e", "b1<0 a0 d1<0 c0<1 e0<1"),
            // A stream without a launch of the branch is nothing to wait for.
            ("{a | {b | c} d} e", "c2<0 b1<0 d1<2 a0 e0<1"),
            ("{a | {b | c} {d | f}} e", "c2<0 b1<0 f2<1 d1<2 a0 e0<1<2"),
            ("{a | begin(x) {begin(b) | c}} e", "c2<0 a0 e0<2"),
            ("{a | b {c | d}} e", "b1<0 d2<1 c1 a0 e0<1<2"),
            ("{{a | b} | c} d", "c1<0 b2<0 a0 d0<1<2"),
            // A branch without a launch is none.
            ("a {b | begin(c)} d", "a0 b0 d0"),
            ("{begin(a) | b} c", "b1<0 c0<1"),
            ("E({a | b}) c", "b1<0 a0 b1<0 a0<1 c0<1"),
            ("E(a {b | [@E > 0](c)} d)", "a0 b0 d0 a0 c1<0 b0 d0<1"),
            ("a {b | c} E({d | f}) d", "a0 c1<0 b0 f1<0 d0<1 f1<0 d0<1 d0<1"),
        ] {
            assert_eq!(streams(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn lists_every_launch() {
        assert_eq!(launches("a begin([1 - 1](b c)) d").unwrap(), ["a", "b", "c", "d"]);
        let counts = |inside: &[&str]| inside.iter().map(ToString::to_string).collect::<Vec<_>>();
        let want = [
            ("a", counts(&["E"])),
            ("b", counts(&["E", "@E > 0"])),
            ("a", counts(&[])),
        ];
        let want = want.map(|(name, counts)| (name.to_string(), counts));
        assert_eq!(counted("E(a [@E > 0](b)) a").unwrap(), want);
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, why) in [
            ("E(a", "'E(' is not closed"),
            ("a)", "unexpected ')'"),
            ("X(a)", "'X' is no size"),
            ("a + b", "unexpected '+'"),
            ("99999(99999(a))", "more than 100000 launches"),
            ("[E > 1] a", "'[E > 1]' has no '(' after it"),
            ("[E > 1 (a)", "'[' is not closed"),
            ("[@J > 1](a)", "no size '@J'"),
            ("a {b | c", "'{' is not closed"),
            ("a {b} c", "'{' has one branch, expected several with '|' between them"),
            ("a {b | (c)} d", "unexpected '('"),
            ("a {b | J(c} d", "'J(' is not closed"),
            ("a | b", "unexpected '|'"),
            ("a {b | c}", "no launch comes after the last branches, which waits for them"),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.ends_with(why), "{error}");
        }
    }
}
