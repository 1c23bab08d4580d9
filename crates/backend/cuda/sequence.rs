//! The order of a variant's launches: `film E(route J(gate_up down)) [@E > 0](collapse)`.

use super::expr::{eval, tokens};

/// One launch of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Its name.
    pub launch: String,
    /// The repetitions that contain it, outermost first: name of the count, and index from 0.
    pub counters: Vec<(String, i64)>,
}

/// Launches in the order in which they run. A name is a launch; `COUNT( … )` repeats its content, where the count is a
/// number, a size, or an expression in brackets, and skips it if the count is 0. In an expression, `@NAME` is the index of
/// the repetition that the size NAME counts.
pub fn unroll(text: &str, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<Vec<Turn>, String> {
    let wrong = |why: String| format!("sequence '{text}': {why}");
    let mut turns = Vec::new();
    let mut counters = Vec::new();
    let parts = parse(text).map_err(wrong)?;
    emit(&parts, sizes, &mut counters, &mut turns).map_err(wrong)?;
    Ok(turns)
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
            }
        }
    }
    let mut found = Vec::new();
    names(&parse(text)?, &mut Vec::new(), &mut found);
    Ok(found)
}

/// Most launches of a run: more is a size in the wrong place.
pub(super) const MOST: usize = 100_000;

/// A piece of a sequence.
enum Part {
    Launch(String),
    Repeated {
        /// A number, a size or an expression.
        count: String,
        content: Vec<Part>,
    },
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
        while let Some((word, rest)) = self.tokens.split_first().filter(|(word, _)| *word != ")") {
            self.tokens = rest;
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

    /// The text up to the bracket that closes it.
    fn expression(&mut self) -> Result<String, String> {
        let end = self.tokens.iter().position(|token| token == "]");
        let end = end.ok_or("'[' is not closed")?;
        let text = self.tokens[..end].join(" ");
        self.tokens = &self.tokens[end + 1..];
        Ok(text)
    }
}

fn emit(
    parts: &[Part],
    sizes: &dyn Fn(&str) -> Option<i64>,
    counters: &mut Vec<(String, i64)>,
    turns: &mut Vec<Turn>,
) -> Result<(), String> {
    for part in parts {
        match part {
            Part::Launch(name) => {
                if turns.len() == MOST {
                    return Err(format!("more than {MOST} launches"));
                }
                turns.push(Turn {
                    launch: name.clone(),
                    counters: counters.clone(),
                });
            }
            Part::Repeated { count, content } => {
                let known = |name: &str| counter(counters, name).or_else(|| sizes(name));
                let times = eval(count, &known).map_err(|why| match known(count) {
                    None if !count.contains(' ') => format!("'{count}' is no size"),
                    _ => why,
                })?;
                if !(0..=MOST as i64).contains(&times) {
                    return Err(format!("'{count}' is {times}"));
                }
                for number in 0..times {
                    counters.push((count.clone(), number));
                    let done = emit(content, sizes, counters, turns);
                    counters.pop();
                    done?;
                }
            }
        }
    }
    Ok(())
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
        ] {
            let error = names(text).unwrap_err();
            assert!(error.ends_with(why), "{error}");
        }
    }
}
