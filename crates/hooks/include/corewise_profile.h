/*
 * corewise_profile.h - tell `corewise profile` of calls and allocations that no compiler tells it of
 *
 * For interpreters, code that is generated at run time, and allocators of one's own. A program that calls
 * these need not be linked with anything: without `corewise profile` they do nothing.
 *
 * A function is an address: of code, whose name is then found, or of anything else that stays where it is.
 * Every thread may call these at any time. What is entered is left by the same thread, in reverse order;
 * what was left by longjmp or an exception is noticed.
 */
#ifndef COREWISE_PROFILE_H
#define COREWISE_PROFILE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((weak)) void corewise_profile_enter(const void *function);
__attribute__((weak)) void corewise_profile_exit(const void *function);
__attribute__((weak)) void corewise_profile_allocated(size_t bytes);

/* A function begins. */
__attribute__((no_instrument_function)) static inline void corewise_profile_begin(const void *function) {
    if (corewise_profile_enter) corewise_profile_enter(function);
}

/* It ends. */
__attribute__((no_instrument_function)) static inline void corewise_profile_end(const void *function) {
    if (corewise_profile_exit) corewise_profile_exit(function);
}

/* The innermost function allocated memory, by other means than the C library's. */
__attribute__((no_instrument_function)) static inline void corewise_profile_allocation(size_t bytes) {
    if (corewise_profile_allocated) corewise_profile_allocated(bytes);
}

#ifdef __cplusplus
}
#endif
#endif
