//! Foreign texts in errors: whoever wrote one must not fill a log with it.

/// How many characters of a foreign text an error shows.
pub const MAX_SHOWN: usize = 64;

/// As much of a foreign text as an error shows.
pub fn excerpt(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
