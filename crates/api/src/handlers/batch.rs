//! Batches whose entries stand each on its own: one that is refused refuses no other.

use ag_core::command::Operation;
use ag_core::name::FieldError;
use ag_proto::v1;

use super::fence;
use crate::failure::{Failure, Verb};
use crate::service::{Call, Service};

/// The entries of a batch, in order: refused before they were proposed, or not.
pub(super) struct Batch<E> {
    slots: Vec<Option<Failure>>,
    entries: Vec<E>,
}

impl<E> Batch<E> {
    /// Parsed entries.
    pub fn of(parsed: Vec<Result<E, FieldError>>) -> Self {
        let mut batch = Self { slots: Vec::with_capacity(parsed.len()), entries: Vec::with_capacity(parsed.len()) };
        for entry in parsed {
            match entry {
                Ok(entry) => {
                    batch.entries.push(entry);
                    batch.slots.push(None);
                }
                Err(error) => batch.slots.push(Some(error.into())),
            }
        }
        batch
    }

    /// The entries that are to be proposed.
    pub fn take(&mut self) -> Vec<E> {
        std::mem::take(&mut self.entries)
    }

    /// Takes out of the operation, which holds those entries, what is stale already: see [`fence::stale`].
    pub fn drop_stale(&mut self, service: &Service, call: &Call, operation: &mut Operation, verb: Verb) {
        let stale = fence::stale(service, call, operation);
        if stale.is_empty() {
            return;
        }
        let mut position = 0..;
        let mut stays = || position.next().is_some_and(|position| !stale.contains(&position));
        match operation {
            Operation::Heartbeat(entries) => entries.retain(|_| stays()),
            Operation::Complete(entries) => entries.retain(|_| stays()),
            _ => {}
        }
        let open = self.slots.iter_mut().filter(|slot| slot.is_none()).enumerate();
        for (_, slot) in open.filter(|(position, _)| stale.contains(position)) {
            *slot = Some(fence::refusal(service, verb));
        }
    }

    /// Whether nothing is left to be proposed.
    pub fn is_all_refused(&self) -> bool {
        self.slots.iter().all(Option::is_some)
    }

    /// One result an entry: those of the proposed ones in their order, and refusals in between.
    pub fn results<O, R>(
        self,
        outcomes: Vec<O>,
        refused: impl Fn(v1::EntryStatus) -> R,
        mut show: impl FnMut(O) -> Result<R, Failure>,
    ) -> Result<Vec<R>, Failure> {
        let mut outcomes = outcomes.into_iter();
        let mut result = |slot: Option<Failure>| match slot {
            Some(failure) => Ok(refused(failure.entry_status())),
            None => outcomes.next().map_or_else(|| Err(missing()), &mut show),
        };
        self.slots.into_iter().map(&mut result).collect()
    }
}

/// The state machine gives an outcome for each entry. If it does not, it must be seen.
fn missing() -> Failure {
    tracing::error!("a batch came to fewer outcomes than it has entries");
    Failure::new(tonic::Code::Internal, "", "the batch came to fewer outcomes than it has entries")
}
