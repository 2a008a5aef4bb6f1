//! Loading the state from its rows.

use std::ops::ControlFlow;

use ag_core::State;
use ag_core::load::Loader;
use ag_wire::storage::{AppliedMark, DecodeError, decode_job, decode_member, decode_queue, decode_reply};

use super::rows::{Rows, job_key, single_values};
use crate::seal::{Table, unseal};
use crate::{LoadProgress, StoreError};

/// Progress is told each time that so many rows more are loaded.
const PROGRESS_ROWS: u64 = 10_000;

/// The state that the rows are, and how far it has applied the log.
pub fn load(rows: &impl Rows, progress: &mut dyn FnMut(LoadProgress)) -> Result<(State, AppliedMark), StoreError> {
    let (meta, mark) = single_values(rows)?;
    let mut run = Run { rows, loaded: LoadProgress { rows: 0, rows_total: 0 }, progress };
    run.loaded.rows_total =
        [Table::Queues, Table::Jobs, Table::Replies, Table::Members].map(|table| rows.count(table)).iter().sum();
    let mut loader = Loader::default();
    run.table(Table::Queues, decode_queue, |(queue, policy)| {
        let key = queue.as_str().as_bytes().to_vec();
        loader.queue(queue, policy);
        key
    })?;
    run.table(Table::Jobs, decode_job, |job| {
        let key = job_key(job.job_id).to_vec();
        loader.job(job);
        key
    })?;
    run.table(Table::Replies, decode_reply, |reply| {
        let key = reply.reply_key.0.to_vec();
        loader.reply(reply);
        key
    })?;
    run.table(Table::Members, decode_member, |member| {
        let key = member.replica_id.0.to_be_bytes().to_vec();
        loader.member(member);
        key
    })?;
    (run.progress)(run.loaded);
    let state = loader.finish(meta).map_err(StoreError::Load)?;
    Ok((state, mark))
}

struct Run<'a, R> {
    rows: &'a R,
    loaded: LoadProgress,
    progress: &'a mut dyn FnMut(LoadProgress),
}

impl<R: Rows> Run<'_, R> {
    /// Decodes each row of a table. `take` gives the key under which it should lie.
    fn table<T>(
        &mut self,
        table: Table,
        decode: fn(&[u8]) -> Result<T, DecodeError>,
        mut take: impl FnMut(T) -> Vec<u8>,
    ) -> Result<(), StoreError> {
        let (loaded, progress) = (&mut self.loaded, &mut self.progress);
        self.rows.scan(table, &[], &mut |key, sealed| {
            let row = decode(unseal(table, key, sealed)?).map_err(StoreError::decode(table.row(key)))?;
            if take(row) != key {
                return Err(StoreError::corrupt(table.row(key), "it belongs under another key"));
            }
            loaded.rows += 1;
            if loaded.rows.is_multiple_of(PROGRESS_ROWS) {
                progress(*loaded);
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}
