-- Run once, on an empty volume. One role for each server, each the owner of its databases alone.
\set prefect_password `cat /run/secrets/prefect_database_password`
\set mlflow_password `cat /run/secrets/mlflow_database_password`
CREATE ROLE prefect LOGIN PASSWORD :'prefect_password';
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow_password';
CREATE DATABASE prefect OWNER prefect;
CREATE DATABASE mlflow OWNER mlflow;
CREATE DATABASE mlflow_auth OWNER mlflow;
REVOKE CONNECT ON DATABASE prefect, mlflow, mlflow_auth FROM PUBLIC;
