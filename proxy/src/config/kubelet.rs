//! Where the kubelet says its pods, and how it is asked.

use super::{
    key,
    resolve::Resolver,
    value::{self, ValueError},
};
use hyper::{Uri, http::uri::PathAndQuery};
use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

/// How the kubelet is asked for its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kubelet {
    pub url: KubeletUrl,
    pub interval: Duration,
    /// How long one answer may take.
    pub timeout: Duration,
    pub token_file: Option<PathBuf>,
    pub ca_file: PathBuf,
    /// Our certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// What the kubelet's certificate has to name.
    pub server_name: String,
}

/// An address for HTTP, by TLS or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletUrl {
    pub tls: bool,
    pub host: String,
    pub port: u16,
    /// Host and port, as a request says them.
    pub authority: String,
    pub path: Uri,
}

const EXPECTED: ValueError = ValueError::Expected(
    "an address such as https://127.0.0.1:10250/pods or http://127.0.0.1:10255/pods",
);

// === impl Kubelet ===

impl Kubelet {
    pub(super) fn read(resolver: &mut Resolver, node_name: &str) -> Self {
        const SECS: fn(u64) -> Duration = Duration::from_secs;
        let url: KubeletUrl = resolver.take(key::KUBELET_URL, str::parse);
        let is_certified = resolver.is_said(key::KUBELET_CERTIFICATE);
        let certificate = resolver.take(key::KUBELET_CERTIFICATE, value::optional_file);
        let own_key = resolver.take(key::KUBELET_KEY, |text| match value::optional_file(text)? {
            Some(_) if !is_certified => Err(ValueError::Unsupported(
                "it is the key of --kubelet-client-certificate, and none is given",
            )),
            file => Ok(file),
        });
        let name = resolver.take(key::KUBELET_SERVER_NAME, |text| Ok(text.to_owned()));
        Self {
            interval: resolver.take(key::KUBELET_INTERVAL, |t| {
                value::duration(t, SECS(1)..=SECS(600))
            }),
            timeout: resolver.take(key::KUBELET_TIMEOUT, |t| {
                value::duration(t, Duration::from_millis(100)..=SECS(60))
            }),
            token_file: resolver.take(key::KUBELET_TOKEN, |text| {
                match value::optional_file(text)? {
                    // Without TLS whoever has the port is taken for the kubelet.
                    Some(_) if !url.tls => Err(ValueError::Unsupported(
                        "a token is said by https alone, and --kubelet-url is none",
                    )),
                    file => Ok(file),
                }
            }),
            ca_file: resolver.take(key::KUBELET_CA, |text| value::file(text).map(PathBuf::from)),
            client: certificate.map(|it| (it.clone(), own_key.unwrap_or(it))),
            server_name: match name.is_empty() {
                false => name,
                // At such an address nobody else is.
                true if url.is_local() => node_name.to_owned(),
                true => url.host.clone(),
            },
            url,
        }
    }
}

// === impl KubeletUrl ===

impl KubeletUrl {
    fn is_local(&self) -> bool {
        let address = self.host.parse::<IpAddr>();
        self.host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for KubeletUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

impl FromStr for KubeletUrl {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let url: Uri = text.parse().map_err(|_| EXPECTED)?;
        let (tls, port) = match url.scheme_str() {
            Some("https") => (true, 10_250),
            Some("http") => (false, 10_255),
            _ => return Err(EXPECTED),
        };
        let host = url.host().unwrap_or_default();
        let authority = url.authority().ok_or(EXPECTED)?;
        // Nobody's password belongs into a command line.
        if host.is_empty() || authority.as_str().contains('@') {
            return Err(EXPECTED);
        }
        let said = authority.as_str().strip_prefix(host).unwrap_or_default();
        let port = match said.trim_start_matches(':') {
            "" => port,
            said => said.parse().map_err(|_| EXPECTED)?,
        };
        let path = url.path_and_query().map_or("/pods", PathAndQuery::as_str);
        let path = if path == "/" { "/pods" } else { path };
        Ok(Self {
            tls,
            authority: format!("{host}:{port}"),
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            path: path.parse().map_err(|_| EXPECTED)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_how_and_where_the_kubelet_is_asked() {
        for (text, tls, host, port, authority, path) in [
            (
                "https://127.0.0.1:10250/pods",
                true,
                "127.0.0.1",
                10_250,
                "127.0.0.1:10250",
                "/pods",
            ),
            ("http://node", false, "node", 10_255, "node:10255", "/pods"),
            ("https://[::1]:1/a?b=c", true, "::1", 1, "[::1]:1", "/a?b=c"),
        ] {
            let url: KubeletUrl = text.parse().unwrap();
            assert_eq!((url.tls, url.port), (tls, port), "{text}");
            assert_eq!((&*url.host, &*url.authority), (host, authority), "{text}");
            assert_eq!(url.path.to_string(), path, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_of_a_kubelet_is_refused() {
        for text in [
            "",
            "/pods",
            "127.0.0.1:10250",
            "ftp://node/pods",
            "https://",
            "https://user:word@node/pods",
            "https://node:99999/pods",
            "https:///pods",
        ] {
            assert!(text.parse::<KubeletUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_kubelet_of_this_machine_is_called_as_its_node() {
        for (url, is_local) in [
            ("https://127.0.0.1", true),
            ("https://127.93.0.7:1", true),
            ("https://[::1]", true),
            ("https://localhost", true),
            ("https://10.0.0.1", false),
            ("https://node-2", false),
        ] {
            assert_eq!(
                url.parse::<KubeletUrl>().unwrap().is_local(),
                is_local,
                "{url}"
            );
        }
    }
}
