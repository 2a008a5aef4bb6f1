//! The first error that this replica cannot go on after. It latches: from then on everything else fails.

use tokio::sync::watch;

use crate::error::ReplicaError;

/// The latch. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    first: watch::Sender<Option<ReplicaError>>,
}

impl Failure {
    /// No error yet.
    pub fn new() -> Self {
        Self { first: watch::Sender::new(None) }
    }

    /// Latches `error`, unless there was one before.
    pub fn latch(&self, error: ReplicaError) {
        self.first.send_if_modified(|first| {
            if first.is_some() {
                return false;
            }
            let causes = causes(&error);
            tracing::error!(error = %causes, "this replica stops");
            *first = Some(error);
            true
        });
    }

    /// Whether there was an error.
    pub fn is_latched(&self) -> bool {
        self.first.borrow().is_some()
    }

    /// Waits for an error.
    pub async fn latched(&self) -> ReplicaError {
        let mut first = self.first.subscribe();
        let first = first.wait_for(Option::is_some).await;
        let first = first.expect("the sender lives as long as self").clone();
        first.expect("it was waited for")
    }
}

/// The error and its causes, on one line.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
