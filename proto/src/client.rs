//! The client for the calls that the proxy makes itself.

/// `runtime.v1`: every runtime since Kubernetes 1.23.
#[allow(
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    reason = "the code is generated"
)]
pub mod v1 {
    include!("generated/client_v1.rs");
}

/// What containerd tells of its containers, beside the CRI.
#[allow(
    clippy::allow_attributes_without_reason,
    clippy::missing_errors_doc,
    clippy::doc_markdown,
    unreachable_pub,
    reason = "the code is generated"
)]
pub mod containerd_events {
    include!("generated/containerd_events.rs");
}
