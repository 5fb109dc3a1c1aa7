//! TLS to the kubelet: who it is, and who we are to it.
//!
//! A kubelet without certificates of its own makes itself an authority and has one, both in the file
//! that is looked into by default. It names the node, not the address at which it is asked here.

use super::kubelet::{KubeletError, read};
use crate::config::Kubelet;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{
            CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName,
            pem::{self, PemObject},
        },
    },
};

/// Why no TLS connection came about.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("what is in {} cannot be used", path.display())]
    Pem {
        path: PathBuf,
        #[source]
        source: pem::Error,
    },
    #[error("there is no certificate in {}", path.display())]
    NoCertificate { path: PathBuf },
    #[error("the certificates cannot be used")]
    Certificates(#[source] rustls::Error),
    #[error("no kubelet can have such a name")]
    Name(#[source] InvalidDnsNameError),
    #[error("the kubelet and we do not agree")]
    Handshake(#[source] io::Error),
}

pub(super) async fn connect(
    stream: TcpStream,
    config: &Kubelet,
) -> Result<TlsStream<TcpStream>, KubeletError> {
    let name = ServerName::try_from(config.server_name.clone()).map_err(TlsError::Name)?;
    let connector = TlsConnector::from(Arc::new(ours(config)?));
    let stream = connector.connect(name, stream).await;
    Ok(stream.map_err(TlsError::Handshake)?)
}

fn ours(config: &Kubelet) -> Result<ClientConfig, KubeletError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&config.ca_file)? {
        roots.add(certificate).map_err(TlsError::Certificates)?;
    }
    // Every kubelet speaks the newest version.
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Certificates)?
        .with_root_certificates(roots);
    let Some((certificate, key)) = &config.client else {
        return Ok(builder.with_no_client_auth());
    };
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|source| TlsError::Pem {
        path: key.clone(),
        source,
    })?;
    let ours = builder.with_client_auth_cert(certificates(certificate)?, private);
    Ok(ours.map_err(TlsError::Certificates)?)
}

/// All certificates of a file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, KubeletError> {
    let text = read(path)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        source,
    })?;
    match all.is_empty() {
        true => Err(TlsError::NoCertificate {
            path: path.to_owned(),
        }
        .into()),
        false => Ok(all),
    }
}
