//! What the process asks of its allocator, mimalloc: huge pages for the workers, and memory given back.
//!
//! The allocator asks the kernel for huge pages. Under load they save a fifth of a decision's CPU, most
//! of it waiting for address translation. But every thread begins on a page of its own, and where that is
//! huge, a thread that only does maintenance takes two megabytes for a few kilobytes: with huge pages for all,
//! an idle process was 16 MB instead of 7. So they are off while the house is set up, and on from the
//! first connection.

/// Says whether what is touched for the first time from here on may be backed by huge pages. Where they were
/// off when this is first called, by `MIMALLOC_ALLOW_THP=0` or by the parent process, they stay off.
pub fn allow_huge_pages(allowed: bool) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};
        static OFF: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        let off = *OFF.get_or_init(|| transparent_huge_pages_are_disabled().unwrap_or_default());
        // A kernel without huge pages has nothing to switch, and does well without.
        let _ = disable_transparent_huge_pages(off || !allowed);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = allowed;
}

/// Gives what is free back to the system; for quiet moments, because it breaks huge pages up.
///
/// The allocator does so only while it is asked for memory: when a million counters have found their
/// place and it is quiet, the smaller tables they grew out of would stay resident for good.
#[expect(unsafe_code, reason = "a call into the allocator, which takes it from any thread at any time")]
pub fn refund() {
    // SAFETY: the function has no precondition, also where another allocator serves this process.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// Bytes of the process in physical memory, where the system says.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let pages = procfs::process::Process::myself().and_then(|process| process.statm()).ok()?.resident;
        Some(pages.saturating_mul(procfs::page_size()))
    }
    #[cfg(not(target_os = "linux"))]
    None
}
