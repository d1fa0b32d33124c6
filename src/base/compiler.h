/* What gcc and clang are told about hot paths. */
#pragma once

/* Inlined wherever it is called, so that constant arguments are constants within it. With sanitizers it need not be,
 * which spares the compiler most of its time. */
#ifdef ROSATUNE_ONE_VERSION
#define ALWAYS_INLINE static inline
#else
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

#define NEVER_INLINE __attribute__((noinline))
#define UNLIKELY(x)  __builtin_expect(!!(x), 0)
#define LIKELY(x)    __builtin_expect(!!(x), 1)
#define PREFETCH(p)  __builtin_prefetch(p)
