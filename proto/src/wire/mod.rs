//! Changing a request without decoding it: protobuf on the wire.
//!
//! A decoder that meets a message field a second time merges it into the first: a later scalar and
//! a later map entry win, lists grow. So a change is a few bytes behind the request, and all that
//! came, fields from the future and strings that are not UTF-8 included, goes on as it came. gogo
//! and protobuf-go both merge so. What this cannot do is remove a list element or a map entry.
//!
//! Reading ([`fields`] and what builds on it) is strict, copies nothing, and recurses only along a
//! path that the caller names. The one copy that is made, by [`select`](select()), is for looking
//! at and never sent.

mod device;
mod env;
mod field;
mod patch;
mod select;
mod writer;

pub use self::{
    device::has_device,
    env::env,
    field::{Field, Fields, Value, WireError, fields, string_field},
    patch::{CreateContainerPatch, Entry, ResourcesPatch, UpdateContainerResourcesPatch},
    select::{Keep, select},
};

pub(crate) use self::select::{key, value};

/// The length in bytes of a request with a patch behind it, to be held against the receiver's
/// limit.
pub fn patched_length(request: &[u8], patch: &[u8]) -> usize {
    request.len().saturating_add(patch.len())
}
