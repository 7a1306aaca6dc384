//! Who gets huge pages: the workers, and not those who keep house.
//!
//! The allocator asks the kernel for huge pages. Under load they save a quarter of a decision's CPU, most
//! of it waiting for address translation. But every thread begins on a page of its own, and where that is
//! huge, a thread that only keeps house takes two megabytes for a few kilobytes: with huge pages for all,
//! an idle process was 16 MB instead of 7. So they are switched off while the house is set up, and on
//! before the workers start.

/// Says whether what is touched for the first time from here on may be backed by huge pages.
pub fn allow(allowed: bool) {
    #[cfg(target_os = "linux")]
    // A kernel without huge pages has nothing to switch, and does well without.
    let _ = rustix::thread::disable_transparent_huge_pages(!allowed);
    #[cfg(not(target_os = "linux"))]
    let _ = allowed;
}
