//! A file arrives intact, or its sender is told that it failed.

use shoal_wire::Time;

use crate::plan::FilePlan;

/// Progress of a file, as its sender's user knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileStage {
    /// Not offered yet, or to be offered again at this time.
    Due(Time),
    /// Offered and not finished.
    Running,
    /// The sender was told that the receiver has the file.
    Finished,
    /// The sender was told of a failure in each attempt.
    Failed,
}

/// One file of the run.
#[derive(Debug)]
pub(crate) struct WatchedFile {
    pub(crate) plan: FilePlan,
    pub(crate) stage: FileStage,
    pub(crate) attempts: u32,
    pub(crate) failure: Option<String>,
    pub(crate) began: Option<Time>,
    pub(crate) ended: Option<Time>,
    /// True if the receiver named the file, even if its disk was lost later.
    pub(crate) named: bool,
    /// True if the receiver ever lost its disk.
    pub(crate) wiped: bool,
}

impl WatchedFile {
    pub(crate) fn new(plan: FilePlan) -> WatchedFile {
        let stage = FileStage::Due(plan.at);
        WatchedFile {
            plan,
            stage,
            attempts: 0,
            failure: None,
            began: None,
            ended: None,
            named: false,
            wiped: false,
        }
    }

    /// Handles the receiver's completion of the file, just before it is named.
    pub(crate) fn complete(&mut self, as_sent: bool) -> Result<(), String> {
        if !as_sent {
            return Err(format!("file {} completed with other bytes", self.plan.number));
        }
        self.named = true;
        Ok(())
    }

    /// Handles the report of success to the sender.
    pub(crate) fn finish(&mut self, now: Time) -> Result<(), String> {
        self.stage = FileStage::Finished;
        self.ended = Some(now);
        if self.named {
            return Ok(());
        }
        Err(format!("file {} finished, but the receiver has not named it", self.plan.number))
    }

    /// Checks the file at the end of the run.
    pub(crate) fn end(&self) -> Result<(), String> {
        match self.stage {
            FileStage::Finished | FileStage::Failed => Ok(()),
            _ => Err(format!(
                "file {} of {} bytes is neither there nor given up after {} attempt(s): {:?}",
                self.plan.number,
                self.plan.content.len(),
                self.attempts,
                self.failure,
            )),
        }
    }
}
