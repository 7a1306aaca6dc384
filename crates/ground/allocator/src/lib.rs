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

/// The memory that the process may use, in bytes, and whether that is the limit of a cgroup and not the memory of the machine.
pub fn available() -> Option<(usize, bool)> {
    #[cfg(target_os = "linux")]
    {
        let total = <procfs::Meminfo as procfs::Current>::current().ok()?.mem_total;
        let limit = cgroup_limit(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
        let limit = limit.filter(|limit| *limit < total);
        let bytes = usize::try_from(limit.unwrap_or(total)).unwrap_or(usize::MAX);
        Some((bytes, limit.is_some()))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The lowest limit of the cgroups of a process, of version 1 or 2. In a container their paths may be those of the machine,
/// and the root of the file system of cgroups the container's own.
#[cfg(target_os = "linux")]
fn cgroup_limit(cgroups: &str) -> Option<u64> {
    let limits = cgroups.lines().filter_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let below = std::path::Path::new(path.trim_start_matches('/')).ancestors();
        let read = |below| std::fs::read_to_string(std::path::Path::new(root).join(below).join(file)).ok();
        below.filter_map(read).filter_map(|text| text.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}
