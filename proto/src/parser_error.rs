//! What parsers of others say is wrong with a text.
//!
//! They repeat what they have found, and that may be all of the text: one number of four megabytes.
//! It is cut where it comes to us, because whoever has an error logs it and keeps it.

use std::error::Error;
use thiserror::Error;

/// A parser's error, as far as a person reads it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct ParserError(Box<str>);

/// Bytes that are kept of its beginning, which says what is wrong, and of its end, which says where.
const BEGINNING: usize = 768;
const END: usize = 256;

// === impl ParserError ===

impl ParserError {
    pub(crate) fn of(error: impl Error) -> Self {
        let text = error.to_string();
        if text.len() <= BEGINNING + END {
            return Self(text.into());
        }
        let beginning = &text[..text.floor_char_boundary(BEGINNING)];
        let end = &text[text.ceil_char_boundary(text.len() - END)..];
        Self(format!("{beginning} … {end}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn of_a_long_text_beginning_and_end_are_kept() {
        let of = |text: String| ParserError::of(io::Error::other(text)).to_string();
        let short = "x".repeat(1_024);
        assert_eq!(of(short.clone()), short);
        let long = format!("no number: {} at line 7", "é".repeat(1 << 20));
        // Eleven bytes, and the 378 letters of two bytes that fit beside them; 246 bytes before the
        // place.
        let expected = format!(
            "no number: {} … {} at line 7",
            "é".repeat(378),
            "é".repeat(123)
        );
        assert_eq!(of(long), expected);
    }
}
