//! Who calls.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

use ag_core::name::PrincipalName;

use crate::bearer::BearerToken;
use crate::principals::{Principals, PrincipalsError};
use crate::role::{Permission, Roles};

/// The principal of every call while the service runs without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// How often the principals file is looked at for a change.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name.
    pub principal: PrincipalName,
    /// What it is.
    pub roles: Roles,
}

impl Caller {
    /// Whether it may do this.
    pub fn may(&self, permission: Permission) -> bool {
        self.roles.permit(permission)
    }
}

/// Why a call comes from nobody. All of these are `unauthenticated` on the wire; none repeats what was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// There is no `authorization` header.
    #[error("this service needs a bearer token, in the form `authorization: Bearer …`")]
    Missing,
    /// The header is not `Bearer <token>`.
    #[error("the authorization header is not of the form `Bearer …`")]
    Malformed,
    /// The token is not (or no longer) that of a principal.
    #[error("the bearer token is not known")]
    Unknown,
}

/// What a look at the principals file has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// It is as it was.
    Unchanged,
    /// It was read anew; it names this many principals.
    Loaded(usize),
}

/// Tells who calls. Cheap to clone.
#[derive(Clone)]
pub struct Authenticator {
    source: Source,
}

#[derive(Clone)]
enum Source {
    Open(Caller),
    File(Arc<FilePrincipals>),
}

struct FilePrincipals {
    path: PathBuf,
    principals: RwLock<Arc<Principals>>,
    seen: Mutex<Option<Stamp>>,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl Drop for FilePrincipals {
    fn drop(&mut self) {
        *self.stop.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.1.notify_all();
    }
}

/// By what a change of the file is noticed; a rename over it changes the inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(path).ok()?;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len(), inode: metadata.ino(), changed })
    }
}

impl Authenticator {
    /// Without credentials: everyone is [`ANONYMOUS`] and may do everything, whatever they show.
    pub fn open() -> Self {
        let principal = PrincipalName::parse("principal", ANONYMOUS).expect("the constant is a well-formed name");
        Self { source: Source::Open(Caller { principal, roles: Roles::all() }) }
    }

    /// With the principals of a file, which must be good now. From then on it is looked at every second, until the last
    /// clone of this value is gone: a change counts for the calls that begin after it was noticed. While it is not
    /// good, the principals of before stay, and an error is logged once.
    pub fn from_file(path: &Path) -> Result<Self, PrincipalsError> {
        let seen = Stamp::of(path);
        let principals = Principals::read(path)?;
        let file = Arc::new(FilePrincipals {
            path: path.into(),
            principals: RwLock::new(Arc::new(principals)),
            seen: Mutex::new(seen),
            stop: Arc::default(),
        });
        let (weak, stop) = (Arc::downgrade(&file), Arc::clone(&file.stop));
        let watcher = std::thread::Builder::new().name("ag-principals".into());
        let started = watcher.spawn(move || watch(&weak, &stop));
        started.map_err(|source| PrincipalsError::Read { path: path.into(), source })?;
        Ok(Self { source: Source::File(file) })
    }

    /// Whether it takes calls without credentials.
    pub fn is_open(&self) -> bool {
        match self.source {
            Source::Open(_) => true,
            Source::File(_) => false,
        }
    }

    /// Who shows this `authorization` header value.
    pub fn authenticate(&self, authorization: Option<&str>) -> Result<Caller, AuthError> {
        let file = match &self.source {
            Source::Open(caller) => return Ok(caller.clone()),
            Source::File(file) => file,
        };
        let (scheme, shown) = authorization.ok_or(AuthError::Missing)?.split_once(' ').ok_or(AuthError::Malformed)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(AuthError::Malformed);
        }
        let presented = BearerToken::parse(shown.trim_matches(' ')).map_err(|_| AuthError::Malformed)?.hash();
        let principals = file.current();
        let entry = principals.find(&presented).ok_or(AuthError::Unknown)?;
        Ok(Caller { principal: entry.name.clone(), roles: entry.roles })
    }

    /// Reads the principals file anew at once, such as on SIGHUP, changed or not. An error leaves all as it was.
    pub fn reload(&self) -> Result<Reload, PrincipalsError> {
        match &self.source {
            Source::Open(_) => Ok(Reload::Unchanged),
            Source::File(file) => file.reload(),
        }
    }
}

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.source {
            Source::Open(_) => f.write_str("Authenticator(open)"),
            Source::File(file) => write!(f, "Authenticator({})", file.path.display()),
        }
    }
}

impl FilePrincipals {
    // A lock is poisoned only by a panic while it was held; each holder here puts one whole value in place.
    fn current(&self) -> Arc<Principals> {
        Arc::clone(&self.principals.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn reload(&self) -> Result<Reload, PrincipalsError> {
        // Held while reading, so that of two reloads at once the later one does not put an older file in place. The
        // stamp is taken before reading: a change while reading is then seen as one at the next look.
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen = Stamp::of(&self.path);
        let principals = Arc::new(Principals::read(&self.path)?);
        let count = principals.entries().len();
        *self.principals.write().unwrap_or_else(PoisonError::into_inner) = principals;
        Ok(Reload::Loaded(count))
    }

    fn reload_if_changed(&self) -> Result<Reload, PrincipalsError> {
        if *self.seen.lock().unwrap_or_else(PoisonError::into_inner) == Stamp::of(&self.path) {
            return Ok(Reload::Unchanged);
        }
        self.reload()
    }
}

fn watch(file: &Weak<FilePrincipals>, stop: &(Mutex<bool>, Condvar)) {
    let mut stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let waited = stop.1.wait_timeout_while(stopped, LOOK_EVERY, |stopped| !*stopped);
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if !timeout.timed_out() {
            return;
        }
        // Given back while the file is read: dropping the last handle takes the same lock, maybe on this very thread.
        drop(guard);
        let Some(file) = file.upgrade() else { return };
        match file.reload_if_changed() {
            Ok(Reload::Unchanged) => {}
            Ok(Reload::Loaded(principals)) => tracing::info!(principals, "the principals file was read anew"),
            Err(error) => tracing::error!(
                error = &error as &(dyn std::error::Error + 'static),
                "the principals file has changed and is not good; the principals of before stay"
            ),
        }
        drop(file);
        stopped = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::role::Role;

    const ALICE: &str = "alice-alice-alice-1";
    const BOB: &str = "bob-bob-bob-bob-bob";

    fn entry(name: &str, secret: &str) -> String {
        let hash = BearerToken::parse(secret).unwrap().hash();
        format!("[[principal]]\nname = \"{name}\"\nroles = [\"worker\"]\nbearer_sha256 = \"{hash}\"\n")
    }

    fn bearer(secret: &str) -> String {
        format!("Bearer {secret}")
    }

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("principals.toml");
        std::fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn without_credentials_everyone_is_anonymous() {
        let caller = Authenticator::open().authenticate(None).unwrap();
        assert_eq!((caller.principal.as_str(), caller.roles), (ANONYMOUS, Roles::all()));
    }

    #[test]
    fn a_known_token_is_its_principal_and_anything_else_is_nobody() {
        let (_dir, path) = file(&entry("alice", ALICE));
        let authenticator = Authenticator::from_file(&path).unwrap();
        for header in [bearer(ALICE), format!("bearer {ALICE}"), format!("BEARER  {ALICE} ")] {
            let caller = authenticator.authenticate(Some(&header)).unwrap();
            assert_eq!(caller.principal.as_str(), "alice");
            assert!(caller.may(Permission::Claim) && !caller.may(Permission::Enqueue));
            assert!(caller.roles.contains(Role::Worker));
        }
        let basic = format!("Basic {ALICE}");
        let cut = bearer(&ALICE[..ALICE.len() - 1]);
        let twice = format!("Bearer {ALICE} {ALICE}");
        for (header, expected) in [
            (None, AuthError::Missing),
            (Some(""), AuthError::Malformed),
            (Some("Bearer"), AuthError::Malformed),
            (Some("Bearer "), AuthError::Malformed),
            (Some(ALICE), AuthError::Malformed),
            (Some(basic.as_str()), AuthError::Malformed),
            (Some(twice.as_str()), AuthError::Malformed),
            (Some(cut.as_str()), AuthError::Unknown),
            (Some("Bearer bob-bob-bob-bob-bob"), AuthError::Unknown),
        ] {
            let error = authenticator.authenticate(header).unwrap_err();
            assert_eq!(error, expected, "{header:?}");
            assert!(!format!("{error} {error:?} {authenticator:?}").contains("alice-"));
        }
    }

    #[test]
    fn a_changed_file_counts_without_a_restart_and_a_bad_one_changes_nothing() {
        let (dir, path) = file(&entry("alice", ALICE));
        let authenticator = Authenticator::from_file(&path).unwrap();
        let is_known = |secret: &str| authenticator.authenticate(Some(&bearer(secret))).is_ok();

        std::fs::write(&path, "nonsense").unwrap();
        assert!(authenticator.reload().is_err());
        assert!(is_known(ALICE), "a bad file leaves the principals of before");

        let next = dir.path().join("next.toml");
        std::fs::write(&next, entry("bob", BOB)).unwrap();
        std::fs::rename(&next, &path).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !is_known(BOB) {
            assert!(Instant::now() < deadline, "the change was not noticed");
            std::thread::park_timeout(Duration::from_millis(20));
        }
        assert!(!is_known(ALICE), "a principal that was taken out is nobody");
    }

    #[test]
    fn reload_reads_at_once() {
        let (_dir, path) = file(&entry("alice", ALICE));
        let authenticator = Authenticator::from_file(&path).unwrap();
        std::fs::write(&path, entry("alice", ALICE) + &entry("bob", BOB)).unwrap();
        assert_eq!(authenticator.reload().unwrap(), Reload::Loaded(2));
        assert!(authenticator.authenticate(Some(&bearer(BOB))).is_ok());
    }

    #[test]
    fn a_missing_file_is_an_error_that_names_it() {
        let error = Authenticator::from_file(Path::new("/nonexistent/principals.toml")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/principals.toml"));
    }

    #[test]
    fn the_watcher_ends_with_the_last_handle() {
        let (_dir, path) = file(&entry("alice", ALICE));
        let authenticator = Authenticator::from_file(&path).unwrap();
        let Source::File(file) = &authenticator.source else { panic!("made from a file") };
        let stop = Arc::downgrade(&file.stop);
        drop(authenticator);
        let deadline = Instant::now() + Duration::from_secs(20);
        while stop.strong_count() > 0 {
            assert!(Instant::now() < deadline, "the thread still runs");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }
}
