//! openraft's own tests of the log and the state machine, over real files.

use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::TypeConfigExt as _;

use super::{LogStore, StateMachine, TypeConfig};
use crate::applied::AppliedState;
use crate::error::ReplicaError;
use crate::failure::Failure;

struct Builder;

fn build() -> Result<(tempfile::TempDir, LogStore, StateMachine), ReplicaError> {
    use ag_store::{DataDir, StateTable as _, StoreOptions};
    let folder = tempfile::tempdir().unwrap();
    let opened = (|| {
        let dir = DataDir::open(folder.path(), StoreOptions::default())?;
        let (log, snapshots, rocks) = (dir.log()?, dir.snapshots()?, dir.state()?);
        let (state, mark) = rocks.load(&mut |_| {})?;
        Ok((log, snapshots, rocks, state, mark))
    })();
    let (log, snapshots, rocks, state, mark) = opened.map_err(crate::applied::store("open the data directory"))?;
    let failure = Failure::new();
    let applied = AppliedState::new(rocks, state, mark)?.into();
    let log = LogStore::new(log.into(), failure.clone())?;
    Ok((folder, log, StateMachine { applied, snapshots, failure }))
}

impl StoreBuilder<TypeConfig, LogStore, StateMachine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        Ok(build().unwrap())
    }
}

#[test]
fn log_and_state_machine_keep_their_contract() {
    TypeConfig::run(async { Suite::test_all(Builder).await.unwrap() });
}
