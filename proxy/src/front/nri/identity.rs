//! What a plugin is called: a name and the place in which it is asked.

use thiserror::Error;

/// A name that every runtime takes, and two digits. Plugins are asked in the order of the latter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    name: String,
    index: String,
}

/// Why a plugin cannot be called so.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum IdentityError {
    #[error("the name {0:?} is not made of letters, digits and _ . + - alone")]
    Name(String),
    #[error("the index {0:?} is not two digits")]
    Index(String),
}

// === impl Identity ===

impl Identity {
    /// Takes a name and an index.
    ///
    /// # Errors
    ///
    /// When the name is empty or has another byte than ASCII letters, digits and `_ . + -`, or the index is
    /// not two ASCII digits.
    pub fn new(name: &str, index: &str) -> Result<Self, IdentityError> {
        let sayable = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
        if name.is_empty() || !name.bytes().all(sayable) {
            return Err(IdentityError::Name(name.to_owned()));
        }
        if index.len() != 2 || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IdentityError::Index(index.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            index: index.to_owned(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn index(&self) -> &str {
        &self.index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_every_runtime_takes() {
        let identity = Identity::new("koord_nri.v1+x-2", "07").unwrap();
        assert_eq!(
            (identity.name(), identity.index()),
            ("koord_nri.v1+x-2", "07")
        );
        for name in ["", "a/b", "a b", "é"] {
            let error = Identity::new(name, "07").unwrap_err();
            assert_eq!(error, IdentityError::Name(name.to_owned()));
        }
    }

    #[test]
    fn an_index_is_two_digits() {
        for index in ["", "1", "123", "1a", "-1", "１２"] {
            let error = Identity::new("koord", index).unwrap_err();
            assert_eq!(error, IdentityError::Index(index.to_owned()));
        }
    }
}
