//! Integer expressions over named sizes. Kernel headers use these expressions for launch parameters.

use std::iter::Peekable;
use std::str::Chars;

use ulplab_core::error::refuse;

/// Evaluates an expression over named sizes. Comparisons, `&&` and `||` give 0 or 1.
pub fn eval(text: &str, sizes: &dyn Fn(&str) -> Option<i64>) -> Result<i64, String> {
    let value = || {
        let mut parser = Parser {
            tokens: tokens(text)?.into_iter().peekable(),
            sizes,
        };
        let value = parser.binary(0)?;
        match parser.tokens.next() {
            None => Ok(value),
            Some(token) => Err(format!("unexpected '{token}'")),
        }
    };
    value().map_err(|why| format!("expression '{text}': {why}"))
}

/// Binary operators by precedence, lowest first.
const LEVELS: &[&[&str]] = &[
    &["||"],
    &["&&"],
    &["==", "!=", "<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// Largest depth of nested parentheses. The limit prevents a stack overflow: each level is a recursive call of the parser.
const DEEPEST: i32 = 64;

/// Returns the identifiers in a text.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'))
}

/// Splits a text into tokens: numbers, names and operators.
fn tokens(text: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut depth = 0;
    let mut chars = text.chars().peekable();
    let while_ = |chars: &mut Peekable<Chars>, word: &mut String, keep: fn(char) -> bool| {
        while let Some(next) = chars.next_if(|c| keep(*c)) {
            word.push(next);
        }
    };
    while let Some(first) = chars.next() {
        let mut token = String::from(first);
        match first {
            c if c.is_whitespace() => continue,
            c if c.is_ascii_digit() => while_(&mut chars, &mut token, |c| c.is_ascii_digit()),
            c if c.is_alphabetic() || c == '_' => {
                while_(&mut chars, &mut token, |c| c.is_alphanumeric() || c == '_');
            }
            '<' | '>' | '=' | '!' | '&' | '|' => while_(&mut chars, &mut token, |c| matches!(c, '=' | '&' | '|')),
            '+' | '-' | '*' | '/' | '%' | '(' | ')' | ',' => {}
            other => return Err(format!("unexpected '{other}'")),
        }
        match first {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        let why = format_args!("parentheses are nested more than {DEEPEST} deep");
        refuse(depth > DEEPEST, why)?;
        tokens.push(token);
    }
    Ok(tokens)
}

struct Parser<'a> {
    tokens: Peekable<std::vec::IntoIter<String>>,
    sizes: &'a dyn Fn(&str) -> Option<i64>,
}

impl Parser<'_> {
    fn binary(&mut self, level: usize) -> Result<i64, String> {
        let Some(operators) = LEVELS.get(level) else {
            return self.atom();
        };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.tokens.next_if(|token| operators.contains(&token.as_str())) {
            let right = self.binary(level + 1)?;
            left = apply(&operator, left, right)?;
        }
        Ok(left)
    }

    fn atom(&mut self) -> Result<i64, String> {
        let mut token = self.tokens.next().ok_or("it ends too early")?;
        let mut sign = 1;
        while token == "-" {
            sign = -sign;
            token = self.tokens.next().ok_or("it ends too early")?;
        }
        Ok(sign * self.unsigned(token)?)
    }

    /// Parses a number, a size, a call of `ceil`, `min` or `max`, or an expression in parentheses.
    fn unsigned(&mut self, token: String) -> Result<i64, String> {
        if let Ok(number) = token.parse() {
            return Ok(number);
        }
        if token == "(" {
            let value = self.binary(0)?;
            return self.expect(")").map(|()| value);
        }
        if let "ceil" | "min" | "max" = token.as_str() {
            self.expect("(")?;
            let a = self.binary(0)?;
            self.expect(",")?;
            let b = self.binary(0)?;
            self.expect(")")?;
            return match token.as_str() {
                "ceil" if b <= 0 => Err(format!("ceil by {b}")),
                "ceil" => {
                    let above = a.checked_add(b - 1);
                    let above = above.ok_or_else(|| format!("ceil({a}, {b}) has no value"))?;
                    Ok(above.div_euclid(b))
                }
                "min" => Ok(a.min(b)),
                _ => Ok(a.max(b)),
            };
        }
        (self.sizes)(&token).ok_or_else(|| format!("no size '{token}'"))
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.tokens.next() {
            Some(token) if token == wanted => Ok(()),
            Some(token) => Err(format!("'{token}' where '{wanted}' is expected")),
            None => Err(format!("'{wanted}' is missing")),
        }
    }
}

fn apply(operator: &str, a: i64, b: i64) -> Result<i64, String> {
    let value = match operator {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "/" => a.checked_div(b),
        "%" => a.checked_rem(b),
        "==" => Some((a == b).into()),
        "!=" => Some((a != b).into()),
        "<" => Some((a < b).into()),
        "<=" => Some((a <= b).into()),
        ">" => Some((a > b).into()),
        ">=" => Some((a >= b).into()),
        "&&" => Some((a != 0 && b != 0).into()),
        "||" => Some((a != 0 || b != 0).into()),
        _ => None,
    };
    value.ok_or_else(|| format!("{a} {operator} {b} has no value"))
}
