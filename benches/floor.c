/* What the kernel itself charges for a sandbox: the namespaces, mounts and filter that Atoll makes around /bin/true, with
 * no agent, no supervisor and no Python. For each line on standard input it makes one, and prints what that took in
 * nanoseconds, from nothing to the exit status in hand.
 *
 *     floor WORKDIR LAYER FILTER       LAYER: the lower directory of the root; /usr is a second overlay
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OK(call) do { if ((long)(call) < 0) { fprintf(stderr, "floor: %s: %s\n", #call, strerror(errno)); _exit(1); } } while (0)

static struct sock_fprog filter;

static int tree(const char *path) {
    int fd = syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    OK(fd);
    return fd;
}

static void show_as(int fd, int userns, int read_only) {
    struct mount_attr attributes = {.attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | (read_only ? MOUNT_ATTR_RDONLY : 0),
                                    .userns_fd = userns};
    OK(syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attributes, sizeof attributes));
}

static void attach(int fd, const char *path) {
    OK(syscall(SYS_move_mount, fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH));
}

static void write_map(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    int fd = open(path, O_WRONLY);
    OK(fd);
    OK(write(fd, "0 2147000000 65536", 18));
    close(fd);
}

static void child(int go, int out, int root, int usr, int disk, int dev) {
    static const char *hidden[] = {"/proc/cmdline", "/proc/config.gz", "/proc/interrupts", "/proc/kallsyms",
                                   "/proc/kcore", "/proc/keys", "/proc/timer_list"};
    static const char *read_only[] = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"};
    char byte;
    OK(read(go, &byte, 1));
    OK(setresgid(0, 0, 0));
    OK(setresuid(0, 0, 0));
    OK(unshare(CLONE_NEWCGROUP));
    setsid();
    OK(sethostname("floor", 5));
    OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    attach(root, "l0");
    attach(usr, "l1");
    attach(disk, "disk");
    OK(mount("overlay", "merged", "overlay", MS_NODEV, "lowerdir=l0,upperdir=disk/root,workdir=disk/root.work,userxattr"));
    OK(mount("overlay", "merged/usr", "overlay", MS_NODEV, "lowerdir=l1,upperdir=disk/usr,workdir=disk/usr.work,userxattr"));
    OK(chdir("merged"));
    attach(dev, "dev");
    OK(mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    OK(mount("sysfs", "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL));
    OK(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"));
    OK(mount("tmpfs", "dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777,size=64m"));
    OK(mount("mqueue", "dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    OK(syscall(SYS_pivot_root, ".", "."));
    OK(umount2(".", MNT_DETACH));
    OK(chdir("/"));
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        if (access(hidden[i], F_OK) == 0) OK(mount("/dev/null", hidden[i], NULL, MS_BIND, NULL));
    for (size_t i = 0; i < sizeof read_only / sizeof *read_only; i++) {
        OK(mount(read_only[i], read_only[i], NULL, MS_BIND, NULL));
        OK(mount(NULL, read_only[i], NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
    }
    if (access("/sys/firmware", F_OK) == 0) OK(mount("tmpfs", "/sys/firmware", "tmpfs", MS_RDONLY, NULL));
    OK(dup2(out, 1));
    OK(syscall(SYS_close_range, 3, ~0U, 0));
    for (int capability = 0; capability <= 40; capability++)
        if (!(0xa80405fbULL >> capability & 1)) OK(prctl(PR_CAPBSET_DROP, capability, 0, 0, 0));
    OK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    OK(prctl(PR_SET_SECCOMP, 2, &filter));
    execl("/bin/true", "true", NULL);
    _exit(1);
}

static int64_t one(const char *layer, int number) {
    struct timespec start, end;
    char name[32], path[64];
    int go[2], out[2];
    clock_gettime(CLOCK_MONOTONIC, &start);
    snprintf(name, sizeof name, "disk%d", number);
    OK(mkdir(name, 0700));
    for (const char **part = (const char *[]){"root", "root.work", "usr", "usr.work", NULL}; *part; part++) {
        snprintf(path, sizeof path, "%s/%s", name, *part);
        OK(mkdir(path, 0755));
    }
    int root = tree(layer), usr = tree("/usr"), disk = tree(name), dev = tree("dev");
    OK(pipe2(go, O_CLOEXEC));
    OK(pipe2(out, O_CLOEXEC));
    struct clone_args arguments = {.flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS,
                                   .exit_signal = SIGCHLD};
    pid_t pid = syscall(SYS_clone3, &arguments, sizeof arguments);
    OK(pid);
    if (pid == 0) child(go[0], out[1], root, usr, disk, dev);
    close(out[1]);
    write_map(pid, "uid_map");
    write_map(pid, "gid_map");
    snprintf(path, sizeof path, "/proc/%d/ns/user", pid);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    OK(userns);
    show_as(root, userns, 1);
    show_as(usr, userns, 1);
    show_as(disk, userns, 0);
    show_as(dev, userns, 1);
    OK(write(go[1], "g", 1));
    char byte;
    OK(read(out[0], &byte, 1)); /* end of file: the program has run */
    int status;
    OK(waitpid(pid, &status, 0));
    if (status) exit(1);
    clock_gettime(CLOCK_MONOTONIC, &end);
    int fds[] = {root, usr, disk, dev, go[0], go[1], out[0], userns};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) close(fds[i]);
    return (end.tv_sec - start.tv_sec) * 1000000000LL + (end.tv_nsec - start.tv_nsec);
}

static void load_filter(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat status;
    OK(fd);
    OK(fstat(fd, &status));
    filter.len = status.st_size / sizeof *filter.filter;
    filter.filter = malloc(status.st_size);
    OK(read(fd, filter.filter, status.st_size));
    close(fd);
}

static void make_dev(void) {
    umask(0);
    OK(mkdir("dev", 0755));
    OK(mount("tmpfs", "dev", "tmpfs", MS_NOSUID, "mode=755"));
    OK(mknod("dev/null", S_IFCHR | 0666, makedev(1, 3)));
    for (const char **name = (const char *[]){"dev/pts", "dev/shm", "dev/mqueue", NULL}; *name; name++) OK(mkdir(*name, 0755));
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    load_filter(argv[3]);
    OK(unshare(CLONE_NEWNS));
    OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
    OK(chdir(argv[1]));
    for (const char **name = (const char *[]){"l0", "l1", "disk", "merged", NULL}; *name; name++) OK(mkdir(*name, 0755));
    make_dev();
    setlinebuf(stdout);
    int number = 0;
    for (int c; (c = getchar()) != EOF;)
        if (c == '\n') printf("%lld\n", (long long)one(argv[2], number++));
    return 0;
}
