//! Long work says how far it is: a spinner on a terminal, else a line every 2 s. Both go to stderr.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::ProgressBar;
use tokio::task::JoinHandle;

const SAY_EVERY: Duration = Duration::from_secs(2);
const TURN_EVERY: Duration = Duration::from_millis(100);

/// Shown until it is dropped. Work that takes less than 2 s shows nothing.
pub struct Progress {
    text: Arc<Mutex<String>>,
    bar: ProgressBar,
    task: JoinHandle<()>,
}

impl Progress {
    /// Begins, with what is being done. Needs a tokio runtime.
    pub fn start(what: impl Into<String>) -> Self {
        let text = Arc::new(Mutex::new(what.into()));
        let bar = ProgressBar::new_spinner();
        let (shown, spinner) = (Arc::clone(&text), bar.clone());
        let task = tokio::spawn(async move {
            for seconds in (SAY_EVERY.as_secs()..).step_by(2) {
                tokio::time::sleep(SAY_EVERY).await;
                // Held only while a whole value is put in place or copied.
                let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let line = format!("{text} ({seconds} s)");
                if spinner.is_hidden() {
                    eprintln!("{line}");
                } else {
                    spinner.set_message(line);
                    spinner.enable_steady_tick(TURN_EVERY);
                }
            }
        });
        Self { text, bar, task }
    }

    /// How far it is by now.
    pub fn say(&self, text: impl Into<String>) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}
