# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, and the Debian package (`make deb`) of it. A service of the host's belongs below /usr,
# not below CMake's default; another prefix (-DCMAKE_INSTALL_PREFIX) is written into the units.
if("${CMAKE_INSTALL_PREFIX}" STREQUAL "/usr/local")
  set(CMAKE_INSTALL_PREFIX /usr CACHE PATH "Where everything is installed" FORCE)
endif()
include(GNUInstallDirs)
# Installing builds nothing: that is `make build`.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(CLEAT_SYSTEMD_DIR lib/systemd/system)
set(CLEAT_SYSUSERS_DIR lib/sysusers.d)
set(CLEAT_TMPFILES_DIR lib/tmpfiles.d)

# A changed unit is written anew.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS systemd/cleatd.service systemd/cleat-engine@.service)
foreach(unit cleatd.service cleat-engine@.service)
  file(READ "${CMAKE_SOURCE_DIR}/systemd/${unit}" text)
  string(REPLACE "=/usr/sbin/" "=${CMAKE_INSTALL_FULL_SBINDIR}/" text "${text}")
  string(REPLACE "/usr/share/doc/cleat" "${CMAKE_INSTALL_FULL_DOCDIR}" text "${text}")
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/systemd/${unit}" CONTENT "${text}" @ONLY)
  install(FILES "${CMAKE_BINARY_DIR}/systemd/${unit}" DESTINATION "${CLEAT_SYSTEMD_DIR}")
endforeach()
install(FILES systemd/cleat.sysusers DESTINATION "${CLEAT_SYSUSERS_DIR}" RENAME cleat.conf)
install(FILES systemd/cleat.tmpfiles DESTINATION "${CLEAT_TMPFILES_DIR}" RENAME cleat.conf)
install(FILES systemd/cleatd.conf systemd/engine.conf systemd/paths.conf DESTINATION "${CMAKE_INSTALL_FULL_SYSCONFDIR}/cleat")

install(TARGETS cleat-perf cleatctl RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(TARGETS cleatd cleat-engine RUNTIME DESTINATION "${CMAKE_INSTALL_SBINDIR}")
install(PROGRAMS deploy/upgrade.sh DESTINATION "${CMAKE_INSTALL_SBINDIR}" RENAME cleat-upgrade)

set(completions "${CMAKE_BINARY_DIR}/completions")
install(
  CODE "
  file(MAKE_DIRECTORY \"${completions}\")
  foreach(shell bash zsh)
    execute_process(COMMAND \"$<TARGET_FILE:cleatctl>\" completion \${shell} OUTPUT_FILE \"${completions}/\${shell}\"
                    COMMAND_ERROR_IS_FATAL ANY)
  endforeach()")
install(FILES "${completions}/bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME cleatctl)
install(FILES "${completions}/zsh" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions" RENAME _cleatctl)

# Manual pages, from what --help says.
set(manual "${CMAKE_BINARY_DIR}/man")
install(
  CODE "
  file(REMOVE_RECURSE \"${manual}\")
  execute_process(COMMAND \"${CMAKE_SOURCE_DIR}/scripts/man_pages.sh\" \"${CMAKE_RUNTIME_OUTPUT_DIRECTORY}\" \"${manual}\"
                  COMMAND_ERROR_IS_FATAL ANY)")
install(DIRECTORY "${manual}/" DESTINATION "${CMAKE_INSTALL_MANDIR}")

# The API for programs in other languages: its sources, and all of it as one descriptor set.
install(DIRECTORY proto/cleat/v1 DESTINATION "${CMAKE_INSTALL_DATADIR}/cleat/proto/cleat" FILES_MATCHING PATTERN "*.proto")
install(DIRECTORY proto/google DESTINATION "${CMAKE_INSTALL_DATADIR}/cleat/proto" FILES_MATCHING PATTERN "*.proto")
install(FILES "${CLEAT_API_DESCRIPTORS}" DESTINATION "${CMAKE_INSTALL_DATADIR}/cleat/proto")

set(debian "${CMAKE_SOURCE_DIR}/deploy/debian")
file(STRINGS "${debian}/changelog" changelog LIMIT_COUNT 1)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS deploy/debian/changelog)
if(NOT changelog MATCHES "^cleat \\(${PROJECT_VERSION}\\) ")
  message(FATAL_ERROR "deploy/debian/changelog begins with '${changelog}', and this is version ${PROJECT_VERSION}: give it an entry")
endif()
file(GLOB pages CONFIGURE_DEPENDS docs/*.md)
install(FILES README.md CHANGELOG.md SECURITY.md ${pages} DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(DIRECTORY docs/benchmarks DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${debian}/copyright" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES "${debian}/lintian-overrides" DESTINATION "${CMAKE_INSTALL_DATADIR}/lintian/overrides" RENAME cleat)
install(
  CODE "
  execute_process(COMMAND gzip -9nc \"${debian}/changelog\" OUTPUT_FILE \"${CMAKE_BINARY_DIR}/debian/changelog.gz\"
                  COMMAND_ERROR_IS_FATAL ANY)")
install(FILES "${CMAKE_BINARY_DIR}/debian/changelog.gz" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME cleat)
set(CPACK_PACKAGE_VENDOR "Cleat")
set(CPACK_PACKAGE_CONTACT "Cleat maintainers <cleat@localhost>" CACHE STRING "Who maintains the package")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "cloud disks for virtual machines, over vhost-user")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
    "Attaches disks - files, block devices, images of a Ceph cluster, memory -
to virtual machines under QEMU: cleatd is the API, cleat-engine the data
path, cleatctl the command line. Limits, encryption, and upgrades under
running guests."
)
set(CPACK_PACKAGE_DIRECTORY "${CMAKE_BINARY_DIR}/packages")
set(CPACK_PACKAGING_INSTALL_PREFIX "${CMAKE_INSTALL_PREFIX}")
# The programs are stripped; what was in them for debuggers is in cleat-dbgsym, which finds them by their build id.
set(CPACK_DEBIAN_DEBUGINFO_PACKAGE ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "systemd (>= 252)")
# Loaded when an RDMA adapter is asked for, by no other host.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "qemu-system-x86 (>= 1:9.1), libibverbs1, librdmacm1, ibverbs-providers")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# No comment may stand in it.
file(WRITE "${CMAKE_BINARY_DIR}/debian/conffiles" "/etc/cleat/cleatd.conf\n/etc/cleat/engine.conf\n/etc/cleat/paths.conf\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${debian}/postinst;${debian}/prerm;${debian}/postrm;${CMAKE_BINARY_DIR}/debian/conffiles")
include(CPack)
