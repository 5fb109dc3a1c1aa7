//! The client for the calls that the proxy makes itself.

/// `runtime.v1`: every runtime since Kubernetes 1.23.
#[allow(
    clippy::allow_attributes_without_reason,
    reason = "the code is generated"
)]
pub mod v1 {
    include!("generated/client_v1.rs");
}
