//! The bytes of a request that is looked at. Some are needed once more, after what the request waits for;
//! then they are copied, once however often it waits.

use std::{ops::Deref, rc::Rc};

/// The message of a request.
#[derive(Clone, Debug)]
pub(super) enum Message<'a> {
    /// The connection's, for now.
    Lent(&'a [u8]),
    Kept(Rc<[u8]>),
}

// === impl Message ===

impl Message<'_> {
    /// The same for later.
    pub(super) fn keep(&self) -> Message<'static> {
        Message::Kept(match self {
            Self::Lent(bytes) => (*bytes).into(),
            Self::Kept(bytes) => bytes.clone(),
        })
    }
}

impl Deref for Message<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Lent(bytes) => bytes,
            Self::Kept(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_copied_once() {
        let bytes = vec![1, 2, 3];
        let lent = Message::Lent(&bytes);
        assert_eq!(lent.as_ptr(), bytes.as_ptr());
        let kept = lent.keep();
        drop(bytes);
        assert_eq!(*kept, [1, 2, 3]);
        assert_eq!(kept.keep().as_ptr(), kept.as_ptr());
    }
}
