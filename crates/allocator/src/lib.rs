//! Calls to the allocator, mimalloc: huge pages for the workers, and free memory returned to the system. The allocator
//! requests huge pages. Under load they save a fifth of a decision's CPU, most of it address translation. But each
//! thread starts with its own page, and a huge page is two megabytes for a thread that needs kilobytes: an idle process
//! took 16 MB instead of 7. So they are disabled during startup, and enabled with the first connection.

/// Enables or disables huge pages for memory that is touched from now on. Where they were disabled before the first
/// call, by `MIMALLOC_ALLOW_THP=0` or by the parent process, they stay disabled.
pub fn allow_huge_pages(allowed: bool) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
        static OFF: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        let off = *OFF.get_or_init(|| transparent_huge_pages_are_disabled().unwrap_or_default());
        // Fails on a kernel without huge pages.
        let _ = disable_transparent_huge_pages(off || !allowed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = allowed;
}

/// Returns free memory to the system. Call it while the process is idle, because it splits huge pages.
///
/// The allocator returns memory only while it is called: after the tables have grown for a million counters and the
/// process is idle, their smaller predecessors would stay resident.
#[expect(unsafe_code, reason = "a call into the allocator, which takes it from any thread at any time")]
pub fn refund() {
    // SAFETY: the function has no precondition, also where another allocator serves this process.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// Resident memory of the process in bytes, where the system reports it.
pub fn resident_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let pages = procfs::process::Process::myself().and_then(|process| process.statm()).ok()?.resident;
        Some(pages.saturating_mul(procfs::page_size()))
    }
    #[cfg(not(target_os = "linux"))]
    None
}
