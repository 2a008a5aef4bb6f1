//! Rows that are not the ones that were stored are found when they are loaded.

use ag_core::load::LoadError;
use ag_core::name::JobId;

use crate::common::rows::Rows;
use crate::common::{World, new_job};

fn world() -> World {
    let mut world = World::new();
    for _ in 0..4 {
        world.enqueue_job(new_job("q"));
    }
    world.claim("q", "w");
    world.complete(JobId(1), "w", b"result").unwrap();
    world.claim("q", "w");
    let enqueue =
        ag_core::command::Enqueue { jobs: vec![new_job("p")], request_id: Some(crate::common::request_id("r")) };
    _ = world.ask("acme", ag_core::command::Operation::Enqueue(enqueue));
    world
}

#[test]
fn rows_load_into_the_same_state_and_hash() {
    let world = world();
    let loaded = world.reloaded();
    assert_eq!(loaded, world.state);
    assert_eq!(loaded.state_hash(), world.state.state_hash());
    ag_core::invariant::check_all(&loaded).unwrap();
}

#[test]
fn a_changed_lost_or_added_row_is_found() {
    type Damage = fn(&mut Rows);
    let damages: [(&str, Damage); 9] = [
        ("a lost job", |rows| _ = rows.jobs.pop_last()),
        ("a lost reply", |rows| rows.replies.clear()),
        ("a lost queue", |rows| _ = rows.queues.pop_first()),
        ("an earlier state", |rows| rows.jobs.get_mut(&JobId(3)).unwrap().priority = 1),
        ("another number", |rows| rows.jobs.get_mut(&JobId(2)).unwrap().attempts = 2),
        ("another holder's lease", |rows| {
            rows.jobs.get_mut(&JobId(2)).unwrap().claim.as_mut().unwrap().lease_ends_at.0 += 1;
        }),
        ("another policy", |rows| rows.queues.values_mut().for_each(|policy| policy.retention_ms += 1)),
        ("another reply", |rows| rows.replies.values_mut().for_each(|reply| reply.content[0] ^= 1)),
        ("an added job", |rows| {
            let mut job = rows.jobs[&JobId(3)].clone();
            job.job_id = JobId(9);
            rows.jobs.insert(JobId(9), job);
        }),
    ];
    for (what, damage) in damages {
        let world = world();
        let mut rows = world.rows.clone();
        damage(&mut rows);
        assert_ne!(rows, world.rows, "{what}");
        assert_eq!(rows.load(world.state.meta().clone()).unwrap_err(), LoadError, "{what}");
    }
}
