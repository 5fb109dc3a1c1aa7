//! Clients for the calls that the proxy makes itself, in both versions of CRI that runtimes speak.
//! They differ in the name of the service alone.

/// `runtime.v1`: every runtime since Kubernetes 1.23.
#[allow(
    clippy::allow_attributes_without_reason,
    reason = "the code is generated"
)]
pub mod v1 {
    include!("generated/client_v1.rs");
}

/// `runtime.v1alpha2`: containerd before 2.0 and CRI-O before 1.26 speak it too.
#[allow(
    clippy::allow_attributes_without_reason,
    reason = "the code is generated"
)]
pub mod v1alpha2 {
    include!("generated/client_v1alpha2.rs");
}
