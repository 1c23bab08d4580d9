//! The order of a variant's launches: `film E(route J(gate_up down)) collapse`.

use super::expr::tokens;

/// One launch of a sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turn {
    /// Its name.
    pub launch: String,
    /// The repetitions that contain it, outermost first: name of the count, and index from 0.
    pub counters: Vec<(String, i64)>,
}

/// Launches in the order in which they run. A name is a launch; `COUNT( … )` repeats its content, where the count is a
/// number or a size, and skips it if the count is 0.
pub fn unroll(text: &str, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<Vec<Turn>, String> {
    let wrong = |why: String| format!("sequence '{text}': {why}");
    let tokens = tokens(text).map_err(wrong)?;
    let mut parser = Parser { tokens: &tokens, sizes };
    let turns = parser.turns().map_err(wrong)?;
    match parser.tokens.first() {
        None => Ok(turns),
        Some(token) => Err(wrong(format!("unexpected '{token}'"))),
    }
}

/// The launches that it names, whatever the counts.
pub fn launches(text: &str) -> Result<Vec<String>, String> {
    let tokens = tokens(text)?;
    let word = |token: &str| token.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    let counts = |at: usize| tokens.get(at + 1).is_some_and(|next| next == "(");
    let named = tokens
        .iter()
        .enumerate()
        .filter(|(at, token)| word(token) && !counts(*at));
    Ok(named.map(|(_, token)| token.clone()).collect())
}

/// Most launches of a run: more is a size in the wrong place.
const MOST: usize = 100_000;

struct Parser<'a> {
    tokens: &'a [String],
    sizes: &'a dyn Fn(&str) -> Option<i64>,
}

impl Parser<'_> {
    fn turns(&mut self) -> Result<Vec<Turn>, String> {
        let mut turns = Vec::new();
        while let Some((word, rest)) = self.tokens.split_first().filter(|(word, _)| *word != ")") {
            self.tokens = rest;
            if !word.starts_with(|c: char| c.is_alphanumeric() || c == '_') {
                return Err(format!("unexpected '{word}'"));
            }
            match self.tokens.split_first() {
                Some((open, inside)) if open == "(" => {
                    self.tokens = inside;
                    let count = self.count(word)?;
                    let part = self.turns()?;
                    self.tokens = match self.tokens.split_first() {
                        Some((close, rest)) if close == ")" => rest,
                        _ => return Err(format!("'{word}(' is not closed")),
                    };
                    if turns.len() + part.len() * count as usize > MOST {
                        return Err(format!("more than {MOST} launches"));
                    }
                    for number in 0..count {
                        turns.extend(part.iter().map(|turn| turn.within(word, number)));
                    }
                }
                _ => turns.push(Turn {
                    launch: word.clone(),
                    counters: Vec::new(),
                }),
            }
        }
        Ok(turns)
    }

    fn count(&self, word: &str) -> Result<i64, String> {
        let count = match word.parse() {
            Ok(number) => number,
            Err(_) => (self.sizes)(word).ok_or_else(|| format!("'{word}' is no size"))?,
        };
        match count {
            0.. if count as usize <= MOST => Ok(count),
            _ => Err(format!("'{word}' is {count}")),
        }
    }
}

impl Turn {
    fn within(&self, count: &str, number: i64) -> Self {
        let outer = std::iter::once((count.to_string(), number));
        Self {
            launch: self.launch.clone(),
            counters: outer.chain(self.counters.iter().cloned()).collect(),
        }
    }

    /// Which repetition counted by `count` it is in; of several within each other the innermost.
    pub fn counter(&self, count: &str) -> Option<i64> {
        let found = self.counters.iter().rev().find(|(name, _)| name == count);
        found.map(|(_, number)| *number)
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
    }

    #[test]
    fn counts_from_outside_in() {
        let turns = unroll("E(J(a) E(b))", &sizes).unwrap();
        let counted: Vec<_> = turns
            .iter()
            .map(|turn| (turn.counter("E"), turn.counter("J")))
            .collect();
        let inner = [(0, Some(0)), (0, Some(1)), (0, Some(2)), (0, None), (1, None)];
        let outer = [(1, Some(0)), (1, Some(1)), (1, Some(2)), (0, None), (1, None)];
        let want: Vec<_> = inner.into_iter().chain(outer).map(|(e, j)| (Some(e), j)).collect();
        assert_eq!(counted, want);
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, why) in [
            ("E(a", "'E(' is not closed"),
            ("a)", "unexpected ')'"),
            ("X(a)", "'X' is no size"),
            ("a + b", "unexpected '+'"),
            ("99999(99999(a))", "more than 100000 launches"),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.ends_with(why), "{error}");
        }
    }
}
