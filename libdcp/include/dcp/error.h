/* Errors: one table gives the code, its name, its text and the program's exit status.
 *
 * Every function of libdcp that can fail returns int: 0, or a negative DCP_E_… code. Its
 * last argument is a caller-owned `struct dcp_error *err`, which may be NULL, and holds
 * one sentence that says what failed, where and why. Thread rule: one err, one thread. */
#ifndef DCP_ERROR_H
#define DCP_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DCP_PUBLIC __attribute__((visibility("default")))
#define DCP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define DCP_PUBLIC
#define DCP_PRINTF(fmt, args)
#endif

/*    X(code,          value, exit, text) */
#define DCP_ERROR_TABLE(X)                           \
    X(OK, 0, 0, "done")                              \
    X(DIFFERS, -1, 1, "the check failed")            \
    X(USAGE, -2, 2, "wrong usage")                   \
    X(NOT_FOUND, -3, 3, "not found")                 \
    X(CORRUPT, -4, 4, "corrupt")                     \
    X(MISMATCH, -5, 5, "does not match the request") \
    X(EXISTS, -6, 5, "already exists")               \
    X(BUSY, -7, 5, "in use by another process")      \
    X(IO, -8, 6, "I/O error")                        \
    X(NO_SPACE, -9, 6, "no space left")              \
    X(COMM, -10, 7, "a rank failed")                 \
    X(UNSUPPORTED, -11, 8, "not supported")          \
    X(MEMORY, -12, 9, "out of memory")               \
    X(STOPPED, -13, 75, "stopped; can be resumed")   \
    X(INTERRUPTED, -14, 130, "interrupted")

enum dcp_error_code {
#define DCP_X(code, value, exit, text) DCP_E_##code = value,
    DCP_ERROR_TABLE(DCP_X)
#undef DCP_X
};

#define DCP_OK 0

/* What became of the rank that a COMM error is about. */
enum dcp_rank_state {
    DCP_RANK_UNKNOWN,
    DCP_RANK_DEAD,  /* its process has ended */
    DCP_RANK_SILENT /* it lives as far as anybody knows, but did not answer in time */
};

/* What failed. Plain data, owned by the caller; zero-initialise it. */
struct dcp_error {
    int code;         /* DCP_E_…, 0 when nothing failed */
    int sys_errno;    /* errno of the system call behind it, or 0 */
    int rank;         /* the rank that failed, -1 when none is meant */
    int rank_state;   /* DCP_RANK_…; UNKNOWN unless code is COMM */
    char tensor[160]; /* the tensor concerned, escaped for printing, or "" */
    char file[256];   /* the file concerned, in the checkpoint, escaped likewise, or "" */
    char message[640]; /* one sentence: what, where, why; no final newline */
    char hint[240];    /* the next act, or "" */
};

/* Fills err (when not NULL) and returns code, so that `return dcp_error_set(…)` works. An
 * err that is already set keeps its first message. Clears the hint otherwise. */
DCP_PUBLIC int dcp_error_set(struct dcp_error *err, int code, const char *fmt, ...)
    DCP_PRINTF(3, 4);

/* As dcp_error_set, with `sys_errno` recorded and ": <its text>" appended. The code is
 * chosen from the errno where it says more than `code` does (ENOENT: NOT_FOUND, ENOSPC
 * and EDQUOT: NO_SPACE, ENOMEM: MEMORY). */
DCP_PUBLIC int dcp_error_sys(struct dcp_error *err, int code, int sys_errno,
                             const char *fmt, ...) DCP_PRINTF(4, 5);

/* Out of memory for `what`: "a catalog". Returns DCP_E_MEMORY. */
DCP_PUBLIC int dcp_error_memory(struct dcp_error *err, const char *what);

/* Sets the next act of an error that is set; does nothing otherwise. */
DCP_PUBLIC void dcp_error_hint(struct dcp_error *err, const char *fmt, ...)
    DCP_PRINTF(2, 3);

/* Names the tensor of an error, which is set already or will be. Escapes the name. */
DCP_PUBLIC void dcp_error_tensor(struct dcp_error *err, const char *name);

/* Names the file of an error, which is set already or will be. Escapes the name. */
DCP_PUBLIC void dcp_error_file(struct dcp_error *err, const char *name);

/* dcp_error_set and dcp_error_tensor in one. The sentence says the name itself. */
DCP_PUBLIC int dcp_error_of_tensor(struct dcp_error *err, int code, const char *name,
                                   const char *fmt, ...) DCP_PRINTF(4, 5);

/* Puts "<prefix>: " before the message of an error that is set. */
DCP_PUBLIC void dcp_error_prefix(struct dcp_error *err, const char *fmt, ...)
    DCP_PRINTF(2, 3);

/* "CORRUPT" for DCP_E_CORRUPT; "UNKNOWN" for no code of the table. Static. */
DCP_PUBLIC const char *dcp_error_name(int code);

/* "corrupt" for DCP_E_CORRUPT. Static. */
DCP_PUBLIC const char *dcp_error_text(int code);

/* The exit status of a program that ends with this code. */
DCP_PUBLIC int dcp_error_exit(int code);

#ifdef __cplusplus
}
#endif
#endif
