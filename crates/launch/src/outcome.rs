//! How a program ended.

/// Exit code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Signalled(i32),
}

impl Status {
    /// From a status as wait(2) has it.
    pub(crate) fn from_wait(status: i32) -> Self {
        if libc::WIFSIGNALED(status) {
            Self::Signalled(libc::WTERMSIG(status))
        } else {
            Self::Exited(libc::WEXITSTATUS(status))
        }
    }

    /// It exited with code 0.
    pub fn success(self) -> bool {
        self == Self::Exited(0)
    }
}
