//! Makes the certificates of a cluster: ECDSA on P-256, two authorities, and per replica one certificate for each port.
//!
//! | file | what it is |
//! | --- | --- |
//! | `peer-ca.crt`, `peer-ca.key` | the authority of the peer port |
//! | `client-ca.crt`, `client-ca.key` | the authority of the client port; clients trust `client-ca.crt` |
//! | `<name>-peer.crt`, `<name>-peer.key` | what a replica shows to other replicas, when it serves and when it dials |
//! | `<name>-server.crt`, `<name>-server.key` | what a replica shows to clients |
//!
//! The `.key` files of the authorities are needed only to make more certificates, and belong on no replica. All files
//! are written with mode 0600, and none is ever overwritten.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};

/// How long certificates are good when nothing else is said: 825 days.
pub const VALID_DEFAULT: Duration = Duration::from_secs(825 * 86_400);
/// The shortest and the longest time for which certificates are made: 1 minute and 100 years.
const VALID_MIN: Duration = Duration::from_secs(60);
const VALID_MAX: Duration = Duration::from_secs(36_525 * 86_400);
/// By how much a certificate begins earlier, for clocks that are not quite the same.
const BEGINS_EARLIER: Duration = Duration::from_secs(3_600);

/// A replica that gets certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaCerts {
    /// The beginning of its files' names: 1–64 letters, digits, `-`, `_`, `.`, not beginning with `.`.
    pub name: String,
    /// The DNS names and IP addresses under which it is reached, on either port; at least one, without ports.
    pub hosts: Vec<String>,
}

/// Why no certificates were made. The files that had been written by then stay, and are complete.
#[derive(Debug, thiserror::Error)]
pub enum CertsError {
    /// An input does not keep its bound.
    #[error("{field}: {bound}")]
    Field {
        /// Which.
        field: String,
        /// What it must be.
        bound: String,
    },
    /// A file is there already.
    #[error("{} is there already, and is not overwritten", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of an authority cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Only one of the two files of an authority is there.
    #[error("{} is missing, while the other file of this authority is there", path.display())]
    HalfAuthority {
        /// The missing file.
        path: PathBuf,
    },
    /// The certificate cannot be made, or the authority's files are damaged.
    #[error("cannot make {what}")]
    Make {
        /// Which.
        what: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
}

/// Makes the certificates of `replicas` in `dir`, and the two authorities if they are not there yet, so that a replica
/// can be added later with the same authorities. Gives the written files, in the order in which they were written.
///
/// `valid_for` is 1 minute to 100 years; an authority that is made is good for ten times as long, at most 100 years.
pub fn make(dir: &Path, replicas: &[ReplicaCerts], valid_for: Duration) -> Result<Vec<PathBuf>, CertsError> {
    let valid_max = format!("must be {} s to {} s", VALID_MIN.as_secs(), VALID_MAX.as_secs());
    if !(VALID_MIN..=VALID_MAX).contains(&valid_for) {
        return Err(CertsError::Field { field: "valid_for".into(), bound: valid_max });
    }
    check(replicas)?;
    refuse_existing(dir, replicas)?;
    std::fs::create_dir_all(dir).map_err(|source| CertsError::Write { path: dir.into(), source })?;
    let mut written = Vec::new();
    let authority_valid_for = valid_for.saturating_mul(10).min(VALID_MAX);
    let peer_ca = authority(dir, "peer-ca", "ag peer CA", authority_valid_for, &mut written)?;
    let client_ca = authority(dir, "client-ca", "ag client CA", authority_valid_for, &mut written)?;
    for replica in replicas {
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        leaf(dir, &format!("{}-peer", replica.name), replica, &peer_ca, &both, valid_for, &mut written)?;
        let serve = [ExtendedKeyUsagePurpose::ServerAuth];
        leaf(dir, &format!("{}-server", replica.name), replica, &client_ca, &serve, valid_for, &mut written)?;
    }
    Ok(written)
}

fn check(replicas: &[ReplicaCerts]) -> Result<(), CertsError> {
    for (position, replica) in replicas.iter().enumerate() {
        let field = |name: &str| format!("replicas[{position}].{name}");
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let name = &replica.name;
        if !(1..=64).contains(&name.len()) || !name.chars().all(allowed) || name.starts_with('.') {
            let bound = "must be 1–64 letters, digits, `-`, `_`, `.`, and not begin with `.`".into();
            return Err(CertsError::Field { field: field("name"), bound });
        }
        if replicas[..position].iter().any(|earlier| earlier.name == *name) {
            return Err(CertsError::Field { field: field("name"), bound: "must not be given twice".into() });
        }
        if replica.hosts.is_empty() {
            return Err(CertsError::Field { field: field("hosts"), bound: "must not be empty".into() });
        }
        for (place, host) in replica.hosts.iter().enumerate() {
            let dns = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
            let good = (1..=253).contains(&host.len()) && host.chars().all(dns) || host.parse::<IpAddr>().is_ok();
            if !good {
                let bound = "must be a DNS name or an IP address, without a port".into();
                return Err(CertsError::Field { field: format!("{}[{place}]", field("hosts")), bound });
            }
        }
    }
    Ok(())
}

/// Before anything is written, so that a second run with the same names leaves nothing half-made.
fn refuse_existing(dir: &Path, replicas: &[ReplicaCerts]) -> Result<(), CertsError> {
    for replica in replicas {
        for ending in ["peer.crt", "peer.key", "server.crt", "server.key"] {
            let path = dir.join(format!("{}-{ending}", replica.name));
            if path.symlink_metadata().is_ok() {
                return Err(CertsError::Exists { path });
            }
        }
    }
    Ok(())
}

fn authority(
    dir: &Path,
    stem: &str,
    common_name: &str,
    valid_for: Duration,
    written: &mut Vec<PathBuf>,
) -> Result<Issuer<'static, KeyPair>, CertsError> {
    let (cert_path, key_path) = (dir.join(format!("{stem}.crt")), dir.join(format!("{stem}.key")));
    let make = |source| CertsError::Make { what: stem.into(), source };
    let read =
        |path: &Path| std::fs::read_to_string(path).map_err(|source| CertsError::Read { path: path.into(), source });
    match (cert_path.exists(), key_path.exists()) {
        (true, true) => {
            let key = KeyPair::from_pem(&read(&key_path)?).map_err(make)?;
            return Issuer::from_ca_cert_pem(&read(&cert_path)?, key).map_err(make);
        }
        (true, false) => return Err(CertsError::HalfAuthority { path: key_path }),
        (false, true) => return Err(CertsError::HalfAuthority { path: cert_path }),
        (false, false) => {}
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(make)?;
    let mut params = params(common_name, valid_for);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key_pem = key.serialize_pem();
    let issuer = CertifiedIssuer::self_signed(params, key).map_err(make)?;
    let cert_pem = issuer.pem();
    write_new(&key_path, &key_pem, written)?;
    write_new(&cert_path, &cert_pem, written)?;
    let key = KeyPair::from_pem(&key_pem).map_err(make)?;
    Issuer::from_ca_cert_pem(&cert_pem, key).map_err(make)
}

fn leaf(
    dir: &Path,
    stem: &str,
    replica: &ReplicaCerts,
    issuer: &Issuer<'_, KeyPair>,
    usages: &[ExtendedKeyUsagePurpose],
    valid_for: Duration,
    written: &mut Vec<PathBuf>,
) -> Result<(), CertsError> {
    let make = |source| CertsError::Make { what: stem.into(), source };
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(make)?;
    let mut params = params(stem, valid_for);
    for host in &replica.hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.as_str().try_into().map_err(make)?),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages.to_vec();
    params.use_authority_key_identifier_extension = true;
    let cert = params.signed_by(&key, issuer).map_err(make)?;
    write_new(&dir.join(format!("{stem}.key")), &key.serialize_pem(), written)?;
    write_new(&dir.join(format!("{stem}.crt")), &cert.pem(), written)
}

fn params(common_name: &str, valid_for: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(BEGINS_EARLIER);
    params.not_after = epoch + now + valid_for;
    params
}

fn write_new(path: &Path, text: &str, written: &mut Vec<PathBuf>) -> Result<(), CertsError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CertsError::Exists { path: path.into() },
        _ => CertsError::Write { path: path.into(), source },
    })?;
    let done = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    done.map_err(|source| CertsError::Write { path: path.into(), source })?;
    written.push(path.into());
    Ok(())
}
