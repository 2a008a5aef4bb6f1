//! PEM texts as certificates and keys.

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls::TlsError;

/// The certificates of `text`, at least one. `what` names the text in errors.
pub(crate) fn certificates(what: &'static str, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) | Err(_) => Err(TlsError::NoCertificate { what }),
    }
}

/// The private key of `text`. The error does not repeat any of it.
pub(crate) fn key(what: &'static str, text: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|_| TlsError::NoKey { what })
}

/// The certificates of `text` as those that are trusted.
pub(crate) fn roots(what: &'static str, text: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, text)? {
        roots.add(certificate).map_err(|source| TlsError::Config { what, source })?;
    }
    Ok(roots)
}
