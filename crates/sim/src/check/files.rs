//! A file arrives bit-identical, or its sender learns that it doesn't.

use shoal_wire::Time;

use crate::plan::FilePlan;

/// How far a file is, as its sender's user knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Not offered yet, or to be offered again at the given time.
    Due(Time),
    /// Offered; no end in sight.
    Running,
    /// The sender was told that the receiver has it.
    Finished,
    /// The sender was told that it failed, as often as it tried.
    Failed,
}

/// One file of the run.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) plan: FilePlan,
    pub(crate) stage: Stage,
    pub(crate) attempts: u32,
    pub(crate) failure: Option<String>,
    pub(crate) began: Option<Time>,
    pub(crate) ended: Option<Time>,
    /// The receiver gave the file its name, whatever became of its disk later.
    pub(crate) named: bool,
    /// The receiver lost its disk at some time.
    pub(crate) wiped: bool,
}

impl Watch {
    pub(crate) fn new(plan: FilePlan) -> Watch {
        let stage = Stage::Due(plan.at);
        Watch {
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

    /// The receiver is about to give the file its name.
    pub(crate) fn complete(&mut self, as_sent: bool) -> Result<(), String> {
        if !as_sent {
            return Err(format!("file {} completed with other bytes", self.plan.number));
        }
        self.named = true;
        Ok(())
    }

    /// The sender is told that all is well.
    pub(crate) fn finish(&mut self, now: Time) -> Result<(), String> {
        self.stage = Stage::Finished;
        self.ended = Some(now);
        if self.named {
            return Ok(());
        }
        Err(format!("file {} finished, but the receiver has not named it", self.plan.number))
    }

    /// The end of the run.
    pub(crate) fn end(&self) -> Result<(), String> {
        match self.stage {
            Stage::Finished | Stage::Failed => Ok(()),
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
